"""Scores every token against every expert, chooses, drops, and balances: the order of Megatron-Core's ``TopKRouter``.

What autograd keeps follows from upstream's own sequence of operations (``moe/router.py``), so most of it is written in
plain torch (``routing.py``, and the losses here).

Losses draw a router towards even loads, of a microbatch, of each sequence, of the global batch; ST-MoE's z-loss keeps
its logits small. One formula serves the three: E · Σ (share of visits · mean score) over the experts, the visits being
counted over more or fewer tokens (Fedus et al. 2021, equation 4; DeepSeek-V2, equation 12; Qiu et al. 2025,
arXiv:2501.11873). Megatron-Core ``moe/moe_utils.py``, ``switch_load_balancing_loss_func``,
``compute_routing_scores_for_aux_loss`` and ``z_loss_func``; ``moe/router.py``, ``_apply_aux_loss``,
``_apply_seq_aux_loss``, ``_apply_global_aux_loss``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from oomscope.config.schema import Config, ModelConfig
from oomscope.model.base.operations import Function
from oomscope.model.moe.routing import Routing, capacity, choose, drop, normalized_sigmoid, visits_of
from oomscope.model.parallel.parallel_state import ParallelState


def router_dtype(model: ModelConfig, dtype: torch.dtype) -> torch.dtype:
    """Return the number format of logits and probabilities in a model of ``dtype``."""
    named = {"fp32": torch.float32, "fp64": torch.float64}
    return dtype if model.moe_router_dtype is None else named[model.moe_router_dtype]


class _Gating(Function):
    """x [n, h], weight [E, h] → logits [n, E] in the router's format; keeps x and the weight in their own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x.to(dtype).mm(weight.to(dtype).t())

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, weight = ctx.saved_tensors
        grad_x = grad.mm(weight.to(grad.dtype)).to(x.dtype)
        return grad_x, grad.t().mm(x.to(grad.dtype)).to(weight.dtype), None


@dataclass(frozen=True, kw_only=True)
class Balance:
    """The losses that keep the router balanced, and the ranks whose tokens are counted together."""

    aux_loss_coeff: float = 0.0
    z_loss_coeff: float = 0.0
    groups: tuple[dist.ProcessGroup, ...] = ()
    """Ranks that share a sequence's tokens; for the loss of the global batch also the replicas."""
    ranks: int = 1
    """Ranks of all ``groups`` together."""
    sharers: int = 1
    """Ranks that share a sequence's tokens."""
    scale: float = 1.0
    """Factor of the gradients of these losses, beside a training loss divided by the number of microbatches."""


def balance_of(config: Config, state: ParallelState, *, runs: int = 1) -> Balance:
    """Return the losses of a router that runs ``runs`` times in a microbatch.

    Gradients become the mean over CP ranks, and so are scaled by their number.

    Source: Megatron-Core ``pipeline_parallel/schedules.py`` (the scale), ``moe/router.py`` (the groups).
    """
    is_global = config.model.moe_router_load_balancing_type == "global_aux_loss"
    is_split = config.parallel.sequence_parallel
    sharers = (state.tp.size if is_split else 1) * state.cp.size
    groups = (state.tp.group if is_split else None, state.cp.group, state.dp.group if is_global else None)
    return Balance(
        aux_loss_coeff=config.aux_loss_coeff / runs,
        z_loss_coeff=config.model.moe_z_loss_coeff or 0.0,
        groups=tuple(group for group in groups if group is not None),
        ranks=sharers * (state.dp.size if is_global else 1),
        sharers=sharers,
        scale=state.cp.size / config.num_microbatches,
    )


class LossAutoScaler(Function):
    """Returns x; in backward each element of ``loss`` is differentiated at ``scale``.

    Megatron-Core ``MoEAuxLossAutoScaler`` and ``MTPLossAutoScaler``.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, loss: torch.Tensor, scale: float) -> torch.Tensor:
        """Remember what the gradient of ``loss`` looks like."""
        ctx.loss = loss.shape, loss.dtype, loss.device, scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Pass the gradient on, and send ``scale`` into the loss."""
        shape, dtype, device, scale = ctx.loss
        return grad, torch.full(shape, scale, dtype=dtype, device=device), None


class Router(nn.Module):
    """Picks k experts for a token, and weighs what they return.

    ``tests/ledgers/layer.py`` has what it keeps, row by row.
    Over the whole run: with ``moe_router_enable_expert_bias`` a bias and a count for each expert, and with
    ``global_aux_loss`` a count, in fp32.
    """

    expert_bias: torch.Tensor | None
    visits_of_step: torch.Tensor | None
    """fp32 [E]: visits since the last step, for the bias."""
    visits_of_batch: torch.Tensor | None
    """fp32 [E]: visits of all ranks since the last step, for the loss of the global batch."""
    microbatches: torch.Tensor | None
    """fp32 []: how many of them ``visits_of_batch`` adds up."""

    def __init__(self, weight: nn.Parameter, model: ModelConfig, balance: Balance) -> None:
        super().__init__()
        self.weight = weight
        self._model = model
        self._balance = balance
        experts = weight.shape[0]
        is_biased = model.moe_router_enable_expert_bias
        is_global = balance.aux_loss_coeff > 0 and model.moe_router_load_balancing_type == "global_aux_loss"
        self._register("visits_of_step", (experts,) if is_biased else None)
        self._register("expert_bias", (experts,) if is_biased else None)
        self._register("visits_of_batch", (experts,) if is_global else None)
        self._register("microbatches", () if is_global else None)

    def _register(self, name: str, shape: tuple[int, ...] | None) -> None:
        zeros = None if shape is None else torch.zeros(shape, dtype=torch.float32, device=self.weight.device)
        self.register_buffer(name, zeros, persistent=name == "expert_bias")

    def forward(self, hidden: torch.Tensor) -> Routing:
        """Return the routing of the tokens of ``hidden`` [s/σ, b, h], taken as [n, h]."""
        sequences = hidden.shape[-2]
        x = hidden.reshape(-1, hidden.shape[-1])
        learns = self.training and torch.is_grad_enabled()
        logits = _Gating.apply(x, self.weight, router_dtype(self._model, x.dtype))
        if learns and self._balance.z_loss_coeff:  # Zoph et al. 2022, equation 5
            weight = self._balance.z_loss_coeff / self._balance.sharers
            z_loss = torch.logsumexp(logits, dim=-1).square().mean() * weight
            logits = LossAutoScaler.apply(logits, z_loss, self._balance.scale)
            del z_loss
        routing = choose(logits, self._model, self.expert_bias, training=self.training)
        limit = capacity(x.shape[0], self._model)
        if limit is not None:
            routing = drop(routing, self._model, limit)
        if learns and self._balance.aux_loss_coeff:
            loss = self._balancing_loss(logits, sequences)
            routing = routing._replace(
                probabilities=LossAutoScaler.apply(routing.probabilities, loss, self._balance.scale)
            )
        if self.visits_of_step is not None and torch.is_grad_enabled():
            self.visits_of_step += routing.visits.sum(dim=0)
        return routing

    def start_batch(self) -> None:
        """Reset the visits of the step that has ended (Megatron-Core ``reset_model_temporary_tensors``)."""
        for counts in (self.visits_of_step, self.visits_of_batch, self.microbatches):
            if counts is not None:
                counts.zero_()

    def _balancing_loss(self, logits: torch.Tensor, sequences: int) -> torch.Tensor:
        """Return the loss of ``logits`` [s·b, E]: over all tokens, or the mean over those of each of b sequences."""
        model, balance = self._model, self._balance
        apart = sequences if model.moe_router_load_balancing_type == "seq_aux_loss" else 1
        is_softmax = model.moe_router_score_function == "softmax"
        scores = torch.softmax(logits, dim=-1, dtype=torch.float32) if is_softmax else normalized_sigmoid(logits)
        visits = visits_of(logits, scores.detach().topk(model.moe_router_topk, dim=1).indices)
        rows, experts = scores.shape[0] // apart, scores.shape[1]
        counts = visits.reshape(rows, -1).sum(dim=0)
        for group in balance.groups:
            dist.all_reduce(counts, group=group)
        if self.visits_of_batch is not None and self.microbatches is not None:
            self.visits_of_batch += counts
            self.microbatches += 1
            counts = self.visits_of_batch / self.microbatches
        tokens = rows * balance.ranks
        factor = experts * balance.aux_loss_coeff / (model.moe_router_topk * tokens * tokens * apart)
        return (scores.reshape(rows, -1).sum(dim=0) * counts).sum() * factor


def update_expert_bias(chunks: Iterable[nn.Module], state: ParallelState, *, rate: float) -> None:
    """Move the biases of all routers in ``chunks`` by ``rate``, and let them count anew."""
    routers = [module for chunk in chunks for module in chunk.modules() if isinstance(module, Router)]
    _move_biases([router for router in routers if router.expert_bias is not None and router.training], state, rate)
    for router in routers:
        router.start_batch()


@torch.no_grad()
def _move_biases(routers: Sequence[Router], state: ParallelState, rate: float) -> None:
    if not routers:
        return
    visits = torch.stack([counts for router in routers if (counts := router.visits_of_step) is not None])
    biases = [bias for router in routers if (bias := router.expert_bias) is not None]
    stacked = torch.stack(biases)
    for group in (state.tp.group, state.dp_cp.group):
        if group is not None:
            dist.all_reduce(visits, group=group)
    missing = visits.sum(dim=-1, keepdim=True) / visits.shape[-1] - visits
    for bias, moved in zip(biases, stacked + torch.sign(missing) * rate, strict=True):
        bias.copy_(moved)
