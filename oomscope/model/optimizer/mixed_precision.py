"""Mixed-precision training: fp32 master weights are updated from the main gradients and copied back.

``docs/design/model.md`` has the bytes a parameter. Parameters that the host updates (``hybrid_optimizer.py``) spare
their moments here, and with the precision-aware optimizer their master too: then the parameters left on the device have
an fp32 master, two fp32 moments and, where main gradients have 16 bits, an fp32 gradient from one step to the next
(Megatron-Core ``optimizer/__init__.py``: of the hybrid optimizer's parts none is precision-aware).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from oomscope.config.schema import Config, OptimizerConfig
from oomscope.model.base.device import computes
from oomscope.model.base.observer import Observer
from oomscope.model.distributed.parameter_store import ParameterStore, is_expert, is_shared_embedding
from oomscope.model.fp8.quantized import quantized_of
from oomscope.model.optimizer.fused_optimizers import FusedAdam, FusedSGD, GroupedOptimizer, PrecisionAwareAdam
from oomscope.model.optimizer.hybrid_optimizer import HostAdam
from oomscope.model.optimizer.muon import Chain, Matrix, Muon
from oomscope.model.parallel.parallel_state import ParallelState

_GROWTH = 2.0
_BACKOFF = 0.5


class GradScaler:
    """A factor on the loss (Megatron-Core ``ConstantGradScaler`` and ``DynamicGradScaler``).

    With ``loss_scale`` it stays the same. Else it is halved at the last of ``hysteresis`` steps whose gradients
    overflow, and doubled after a window of finite ones.
    """

    def __init__(self, config: Config, device: torch.device) -> None:
        self._config = config.optimizer
        self._is_dynamic = config.optimizer.loss_scale is None
        self._finite_steps = 0
        self._overflows_left = config.optimizer.hysteresis
        numbers = [config.optimizer.loss_scale or config.optimizer.initial_loss_scale, 0.0]
        numbers += [config.optimizer.min_loss_scale, _GROWTH, _BACKOFF] if self._is_dynamic else []
        self.tensors = [torch.full((1,), number, dtype=torch.float32, device=device) for number in numbers]
        """The scaler's permanent tensors: the factor, the flag; least factor, growth and backoff."""

    def scale_loss(self, loss: torch.Tensor) -> torch.Tensor:
        """Return ``loss`` times the factor, of shape [1]."""
        return self.tensors[0] * loss

    def unscale(self, grads: Sequence[torch.Tensor], groups: Sequence[dist.ProcessGroup | None]) -> bool:
        """Divide ``grads`` by the factor in place, update it, and return whether all are finite on all ``groups``."""
        scale, found_inf = self.tensors[:2]
        found_inf.zero_()
        if grads:
            inverse = scale.double().reciprocal().float()
            torch._amp_foreach_non_finite_check_and_unscale_(list(grads), found_inf, inverse)
        for group in groups:
            if group is not None:
                dist.all_reduce(found_inf, op=dist.ReduceOp.MAX, group=group)
        is_finite = not computes(found_inf.device) or found_inf.item() == 0
        if self._is_dynamic:
            self.update(is_finite=is_finite)
        return is_finite

    def update(self, *, is_finite: bool) -> None:
        """Halve or double the factor where that is due."""
        scale, _, lowest, growth, backoff = self.tensors
        if not is_finite:
            self._finite_steps = 0
            self._overflows_left -= 1
            if self._overflows_left <= 0:
                self.tensors[0] = torch.maximum(scale * backoff, lowest)
            return
        self._finite_steps += 1
        if self._finite_steps == self._config.loss_scale_window:
            self._finite_steps = 0
            self._overflows_left = self._config.hysteresis
            self.tensors[0] = scale * growth


def build_grad_scaler(config: Config, device: torch.device) -> GradScaler | None:
    """Return the scaler that ``config`` asks for; bf16 and fp32 need none.

    As upstream (``optimizer/__init__.py``) a given ``loss_scale`` is constant in any precision.
    """
    scales = config.optimizer.loss_scale is not None or config.precision.fp16
    return GradScaler(config, device) if scales else None


_EPSILON = 1e-6
"""Added to the norm before dividing, as in ``torch.nn.utils.clip_grad_norm_`` and Megatron-Core."""


@dataclass(frozen=True)
class MasterWeight:
    """The part of a parameter that this rank updates: its weight in training, where its gradient is, its master."""

    store: ParameterStore
    index: int
    """Index of the parameter in ``store``."""
    value: torch.Tensor
    master: torch.Tensor
    """Master weight: ``value`` itself where that is fp32 already, unless the store keeps masters nevertheless, and
    where the inner optimizer or the host keeps it."""
    expert: bool
    """Whether it belongs to a routed expert, and so is spread over other ranks."""
    counted: bool
    """Whether this rank counts it in the global norm: replicas are counted once."""
    decayed: bool
    """Whether weight decay applies: not to biases and norms (Megatron-Core ``optimizer/__init__.py``)."""

    @property
    def param(self) -> nn.Parameter:
        """The parameter that ``value`` is, or is a part of."""
        return self.store.params[self.index]

    @property
    def is_fp8(self) -> bool:
        """Whether ``value`` is bytes of fp8."""
        return quantized_of(self.param) is not None

    def take_grad(self) -> torch.Tensor:
        """Return the gradient of ``value`` (:meth:`ParameterStore.take_grad`)."""
        return self.store.take_grad(self.index)


class MixedPrecisionOptimizer:
    """Adam, SGD or Muon over the master weights of a rank."""

    def __init__(
        self, config: Config, state: ParallelState, stores: Sequence[ParameterStore], observer: Observer
    ) -> None:
        self._config = config.optimizer
        self._state = state
        self._stores = stores
        self._observer = observer
        self._device = stores[0].params[0].device
        self._sharded = config.shards_optimizer_states
        self._has_experts = config.model.num_moe_experts is not None
        self._reported = False
        self.scaler = build_grad_scaler(config, self._device)
        values = [weight for store in stores for weight in _weights(store, state)]
        fraction = config.optimizer.optimizer_offload_fraction if config.optimizer.optimizer_cpu_offload else 0.0
        on_host, on_device = _split_by_fraction(values, fraction)
        precision_aware = config.optimizer.use_precision_aware_optimizer
        is_hybrid = precision_aware and config.optimizer.optimizer_cpu_offload
        self._reads_main_grads = precision_aware
        """Whether gradients are measured and clipped where they are (``decoupled_grad`` upstream)."""
        self._on_host = on_host if precision_aware else [_with_master(weight) for weight in on_host]
        own_masters = is_hybrid or not precision_aware
        self._on_device = [_with_master(weight) for weight in on_device] if own_masters else on_device
        self.weights = [*self._on_host, *self._on_device]
        masters, decayed = [weight.master for weight in self._on_host], [weight.decayed for weight in self._on_host]
        self._host = HostAdam(config.optimizer, masters, decayed) if masters else None
        self.inner = _inner_optimizer(config.optimizer, self._on_device, state)
        self._observer.role("optimizer_state", [w.master for w in self.weights if w.master is not w.value])
        if self.scaler is not None:
            self._observer.role("optimizer_state", self.scaler.tensors)

    def zero_grad(self) -> None:
        """Discard all gradients; called first in a step."""
        for store in self._stores:
            store.zero()
        if not self._reads_main_grads:  # else an fp32 copy stays until the next one takes its place
            for weight in self.weights:
                weight.master.grad = None

    @torch.no_grad()
    def step(self) -> torch.Tensor | None:
        """Clip, update the master weights, copy them back, gather other ranks' shards; return the gradient's norm.

        The norm is that before clipping, a 0-d tensor; None with ``clip_grad = 0``, and where the step is left out
        because scaled gradients overflowed.
        """
        if not self._reads_main_grads:
            self._hand_over_grads()
        if not self._unscale():
            return None
        norm = self._clip(self._config.clip_grad) if self._config.clip_grad else None
        if self._reads_main_grads:
            self._hand_over_grads()
        if self._host is not None:
            self._host.step(self._grads(self._on_host))
        self.inner.step()
        self._report_states()
        self._quantize_masters()
        for weight in self.weights:
            if weight.master is not weight.value and not weight.is_fp8:
                weight.value.copy_(weight.master)
        for store in self._stores:
            store.gather(overlap=self._config.overlap_param_gather)
        return norm

    def _quantize_masters(self) -> None:
        """Round the masters of parameters in fp8 to 16 bits, those of a store all at once, before they are quantised.

        Source: Transformer Engine pytorch/tensor/utils.py, quantize_master_weights.
        """
        for store in self._stores:
            narrow = [weight for weight in self.weights if weight.store is store and weight.is_fp8]
            rounded = [weight.master.to(weight.param.dtype) for weight in narrow]
            del rounded

    def _hand_over_grads(self) -> None:
        """Make the gradients what the inner optimizer reads: in fp32, or with precision-aware Adam as they are."""
        if isinstance(self.inner, PrecisionAwareAdam):
            self.inner.grads = {weight.master: weight.take_grad() for weight in self._on_device}
            return
        for weight in self._on_device if self._reads_main_grads else self.weights:
            grad = weight.take_grad()
            weight.master.grad = grad.float()
            if grad.dtype != torch.float32:
                self._observer.role("gradient", [weight.master.grad])

    def _grads(self, weights: Sequence[MasterWeight]) -> list[torch.Tensor]:
        if self._reads_main_grads:
            return [weight.take_grad() for weight in weights]
        return [weight.master.grad for weight in weights if weight.master.grad is not None]

    def _unscale(self) -> bool:
        """Undo the loss scaling; return whether all gradients of all ranks are finite."""
        if self.scaler is None:
            return True
        state = self._state
        groups = [state.tp.group, state.pp.group, state.intra_dp_cp.group if self._sharded else None]
        groups += [state.expert_tp.group, state.ep.group] if self._has_experts else []
        return self.scaler.unscale(self._grads(self.weights), groups)

    def _clip(self, max_norm: float) -> torch.Tensor:
        """Scale all gradients so that their norm over all ranks is at most ``max_norm``; return what it was.

        Megatron-Core (``optimizer/clip_grads.py``) has a kernel for it; here each tensor is reduced to one number.
        The factor stays on the device and is applied in any case: no value is read back.
        """
        state, is_sharded = self._state, self._sharded
        groups = [state.tp.group, state.pp.group, state.intra_dp_cp.group if is_sharded else None]
        total = self._squared_norm(groups, expert=False)
        if self._has_experts:
            groups = [state.expert_tp.group, state.ep.group, state.pp.group]
            groups += [state.intra_expert_dp.group if is_sharded else None]
            total += self._squared_norm(groups, expert=True)
        norm = total.sqrt_()
        grads = self._grads(self.weights)
        if grads:
            torch._foreach_mul_(grads, (max_norm / (norm + _EPSILON)).clamp_(max=1.0))
        return norm

    def _squared_norm(self, groups: Sequence[dist.ProcessGroup | None], *, expert: bool) -> torch.Tensor:
        counted = self._grads([weight for weight in self.weights if weight.counted and weight.expert is expert])
        norms = [torch.linalg.vector_norm(grad, dtype=torch.float32) for grad in counted]
        if norms:
            total = torch.stack(norms).square_().sum()
        else:
            total = torch.zeros((), dtype=torch.float32, device=self._device)
        for group in groups:
            if group is not None:
                dist.all_reduce(total, group=group)
        return total

    def _report_states(self) -> None:
        if not self._reported:
            kept = [*self.inner.state.values(), *self.inner.param_groups]
            tensors = (value for state in kept for value in state.values() if isinstance(value, torch.Tensor))
            self._observer.role("optimizer_state", tensors)
        self._reported = True


def _weights(store: ParameterStore, state: ParallelState) -> Iterator[MasterWeight]:
    """Yield what this rank updates of ``store``, with masters where the store keeps them."""
    for index, param in enumerate(store.params):
        value, master = store.value(index), store.master(index)
        if not value.numel():
            continue
        yield MasterWeight(
            store=store,
            index=index,
            value=value,
            master=value if master is None else master,
            expert=is_expert(param),
            counted=_is_counted(param, state),
            decayed=param.ndim > 1,
        )


def _split_by_fraction(
    weights: Sequence[MasterWeight], fraction: float
) -> tuple[list[MasterWeight], list[MasterWeight]]:
    """Return the weights of the host and those of the device, each in order.

    Weights move while less than ``fraction`` of all elements has moved, so that the last one overshoots.
    """
    goal = fraction * sum(weight.master.numel() for weight in weights)
    moved, number = 0, 0
    while number < len(weights) and moved < goal:
        moved += weights[number].master.numel()
        number += 1
    return list(weights[:number]), list(weights[number:])


def _with_master(weight: MasterWeight) -> MasterWeight:
    if weight.is_fp8:  # upstream starts from the 16-bit value (distrib_optimizer.py, get_high_precision_init_val)
        return replace(weight, master=torch.empty(weight.value.shape, dtype=torch.float32, device=weight.value.device))
    has_one = weight.master is not weight.value or weight.value.dtype == torch.float32
    return weight if has_one else replace(weight, master=weight.value.float())


def _is_counted(param: nn.Parameter, state: ParallelState) -> bool:
    if is_shared_embedding(param) and not state.is_first_stage:
        return False
    tp_rank = state.expert_tp.rank if is_expert(param) else state.tp.rank
    return tp_rank == 0 or bool(getattr(param, "tensor_model_parallel", False))


def _inner_optimizer(config: OptimizerConfig, weights: Sequence[MasterWeight], state: ParallelState) -> Optimizer:
    if config.optimizer != "muon":
        return _adam_or_sgd(config, weights)
    matrices = [weight for weight in weights if _is_orthogonalised(weight.param)]
    others = [weight for weight in weights if not _is_orthogonalised(weight.param)]
    return Chain([*([_muon(config, matrices, state)] if matrices else []), _adam_or_sgd(config, others)])


def _is_orthogonalised(param: nn.Parameter) -> bool:
    """Whether Muon updates ``param``: a matrix, or those of several experts, that is no table of words.

    Learned positions are, too (Megatron-Core ``optimizer/layer_wise_optimizer.py``, is_managed_by_layer_wise_optimizer;
    ``models/common/language_module/language_module.py``).
    """
    return param.ndim > 1 and not getattr(param, "is_embedding_or_output_parameter", False)


def _muon(config: OptimizerConfig, weights: Sequence[MasterWeight], state: ParallelState) -> Muon:
    dense = Matrix(state.tp.group, state.tp.size, state.tp.rank, None)
    expert = Matrix(state.expert_tp.group, state.expert_tp.size, state.expert_tp.rank, None)

    def matrix(weight: MasterWeight) -> Matrix:
        dim, blocks = getattr(weight.param, "partition_dim", None), getattr(weight.param, "stacked_rows", ())
        return (expert if weight.expert else dense)._replace(dim=dim, blocks=blocks)

    masters, matrices = [weight.master for weight in weights], [matrix(weight) for weight in weights]
    return Muon([{"params": masters, "matrices": matrices, "weight_decay": config.weight_decay}], config)


def _adam_or_sgd(config: OptimizerConfig, weights: Sequence[MasterWeight]) -> GroupedOptimizer:
    groups = [
        {"params": [w.master for w in weights if w.decayed], "weight_decay": config.weight_decay},
        {"params": [w.master for w in weights if not w.decayed], "weight_decay": 0.0},
    ]
    if config.optimizer == "sgd":
        return FusedSGD(groups, lr=config.lr, momentum=config.sgd_momentum)
    if config.use_precision_aware_optimizer and not config.optimizer_cpu_offload:
        return PrecisionAwareAdam(groups, config)
    return FusedAdam(groups, config)
