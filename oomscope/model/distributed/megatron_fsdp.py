"""Megatron-FSDP: buckets of its own for parameters, main weights and main gradients, a transformer layer a unit.

``data_parallel_sharding_strategy`` says what a rank keeps a share of (bytes: ``docs/design/model.md``). Main gradients
below fp32 are cast for the update. With ``optim_grads`` and ``optim_grads_params`` each microbatch reduces its
gradients, and all whole ones wait in memory for the end of backward, up to ``suggested_communication_unit_size``
elements of them. With the latter the buckets of units come and go, and what belongs to no unit stays gathered after its
first use. Sources: Megatron-Core ``distributed/fsdp/src/megatron_fsdp/megatron_fsdp.py`` (hooks, order of a step) and
``param_and_grad_buffer.py`` (buffers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import torch
from torch import nn

from oomscope.config.schema import Config
from oomscope.model.base.observer import Observer, Role
from oomscope.model.base.operations import Function
from oomscope.model.distributed.fsdp_buffers import ParameterGroup, ShardedBuffer, parameter_groups
from oomscope.model.distributed.fsdp_pipelines import GatherPipeline, ReducePipeline
from oomscope.model.distributed.param_and_grad_buffer import Span
from oomscope.model.distributed.parameter_store import ParameterStore
from oomscope.model.gpt.stage import GPTStage
from oomscope.model.parallel.parallel_state import ParallelState

DEFAULT_UNIT_SIZE = 1_000_000_000
"""Elements if ``suggested_communication_unit_size`` is not set; those of two units if these are more."""
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class MegatronShardedParameters(ParameterStore):
    """The buckets of a model, and the hooks that fill and empty them."""

    def __init__(self, stage: GPTStage, config: Config, state: ParallelState, observer: Observer) -> None:
        parallel = config.parallel
        self._strategy = parallel.data_parallel_sharding_strategy
        self._observer = observer
        self._state = state
        self._reduces_each_time = self._strategy in ("optim_grads", "optim_grads_params")
        self._shards_parameters = self._strategy == "optim_grads_params"
        optimizer = config.optimizer
        self._overlaps_gather = optimizer.overlap_param_gather or self._shards_parameters
        self._overlaps_reduce = optimizer.overlap_grad_reduce or self._reduces_each_time
        self._logs_norm = optimizer.log_params_norm
        self._is_sharded = self._strategy != "no_shard"
        units = list(stage.layers) if self._is_sharded else []
        # elements of a bucket outside of units (Megatron-LM training/training.py)
        bucket_size = max(40_000_000, 1_000_000 * state.dp_cp.size) if optimizer.overlap_grad_reduce else None
        self._groups = parameter_groups(_with_units(stage, units), bucket_size=bucket_size)
        self.params = tuple(chain(*(group.params for group in self._groups)))
        self._group_of = {param: index for index, group in enumerate(self._groups) for param in group.params}
        self._device = self.params[0].device
        grad_dtype = _DTYPES.get(parallel.megatron_fsdp_main_grads_dtype)
        self._weights, self._mains = self._make_weights()
        self._grads = self._make_grads(grad_dtype)
        size = _communication_size(config, units)
        self._gathering = GatherPipeline(self._groups, self._weights, ahead=size // 2, device=self._device)
        self._reducing = ReducePipeline(
            self._grads,
            [self._gathering.together(index) for index in range(len(self._groups))],
            comm_dtype=_DTYPES.get(parallel.megatron_fsdp_grad_comm_dtype),
            scale=1 / state.dp_cp.size,
            capacity=size,
            device=self._device,
        )
        self._in_backward: set[nn.Module] = set()
        """Modules that gather nothing ahead: a unit from the loss to the end of its backward, others permanently."""
        self._unhandled: set[nn.Parameter] = set()
        """Parameters whose gradients of this backward are still to come."""
        self._hook(stage, units)

    # What the optimizer asks -------------------------------------------------------------------------------------

    def report_roles(self, observer: Observer) -> None:
        """Report the permanent tensors to ``observer``."""
        observer.role("parameter", [buffer.data for buffer in self._weights])
        observer.role("optimizer_state", [buffer.data for buffer in self._mains])
        observer.role("main_gradient", [buffer.data for buffer in self._grads])

    def zero(self) -> None:
        """Discard all gradients."""
        for buffer in self._grads:
            buffer.data.zero_()
        self.is_last_microbatch = False

    def reduce(self) -> None:
        """Finish the reductions, and free the units' parameters (``finish_grad_sync``)."""
        if self._overlaps_reduce:
            self._reducing.reset()
        else:
            self._reducing.reduce_all()
        if self._overlaps_gather:
            self._gathering.reset()

    def gather(self, *, overlap: bool = False) -> None:
        """Gather what the update has changed (``start_param_sync``): in part where it overlaps with the forward.

        ``log_params_norm`` then lets go of the units again, since it wants shards (Megatron-LM
        ``training/utils/common_utils.py``, calc_params_l2_norm).
        """
        if not self._is_sharded:
            return
        if self._overlaps_gather:
            self._gathering.gather([0], forward=True)
        else:
            self._gathering.reset()
            self._gathering.gather(range(len(self._groups)), forward=None)
            self.await_gather()
        if self._logs_norm:
            self._gathering.reset()

    def await_gather(self) -> None:
        """Wait for what is on its way."""
        self._gathering.wait(range(len(self._groups)))

    def value(self, index: int) -> torch.Tensor:
        """Return the elements of parameter ``index`` that this rank updates."""
        return self._owned(self._weights, index) if self._weights else self.params[index].detach()

    def master(self, index: int) -> torch.Tensor:
        """Return the main weights of these elements."""
        return self._owned(self._mains, index)

    def take_grad(self, index: int) -> torch.Tensor:
        """Return the main gradients of these elements, which stay; sums over TP ranks are taken of them, too."""
        return self._owned(self._grads, index)

    def owned(self, index: int) -> Span:
        """Return the elements of parameter ``index``, counted from its own start, that this rank updates."""
        param = self.params[index]
        return self._grads[self._group_of[param]].owned(param)

    def _owned(self, buffers: list[ShardedBuffer], index: int) -> torch.Tensor:
        param = self.params[index]
        return buffers[self._group_of[param]].owned_item(param)

    # Buffers -----------------------------------------------------------------------------------------------------

    def _buffer(self, group: ParameterGroup, dtype: torch.dtype, role: Role, *, distributed: bool) -> ShardedBuffer:
        return ShardedBuffer(
            group,
            self._state,
            is_sharded=self._is_sharded,
            is_distributed=distributed,
            dtype=dtype,
            role=role,
            observer=self._observer,
        )

    def _make_weights(self) -> tuple[list[ShardedBuffer], list[ShardedBuffer]]:
        """Copy the parameters to main weights, and move them unless nothing is sharded; return both buckets."""
        weights, mains = [], []
        for group in self._groups:
            weight = self._buffer(group, group.dtype, "parameter", distributed=self._shards_parameters)
            main = self._buffer(group, torch.float32, "optimizer_state", distributed=self._is_sharded)
            if self._is_sharded:
                weight.data = torch.empty(weight.kept, dtype=group.dtype, device=self._device)
                bucket = weight.fetch()
                weights.append(weight)
            main.data = torch.empty(main.kept, dtype=torch.float32, device=self._device)
            for param in group.params:
                main.copy_in(param, param.detach())
                if self._is_sharded:
                    _move(param, weight, bucket)
            weight.free(forget=False)
            mains.append(main)
        return weights, mains

    def _make_grads(self, dtype: torch.dtype | None) -> list[ShardedBuffer]:
        """Return the main gradients, one tensor for all of a dtype; None stands for the parameters' own."""
        grads = [
            self._buffer(group, dtype or group.dtype, "gradient", distributed=self._reduces_each_time)
            for group in self._groups
        ]
        for kind in {buffer.dtype: None for buffer in grads}:
            alike = [buffer for buffer in grads if buffer.dtype == kind]
            sizes = [buffer.kept for buffer in alike]
            whole = torch.zeros(sum(sizes), dtype=kind, device=self._device)
            for buffer, part in zip(alike, whole.split(sizes), strict=True):
                buffer.data = part
        return grads

    # Hooks -------------------------------------------------------------------------------------------------------

    def _hook(self, stage: GPTStage, units: list[nn.Module]) -> None:
        inside = {module for unit in units for module in unit.modules()}
        for module in stage.modules():
            if self._is_sharded and (module in units or module not in inside):
                module.register_forward_pre_hook(self._before_forward, prepend=True)
        for unit in units:
            unit.register_forward_hook(self._watch_output(self._before_unit_backward))
            if self._shards_parameters:
                unit.register_forward_pre_hook(self._watch_input)
                unit.register_forward_hook(self._after_unit_forward)
        stage.register_forward_hook(self._watch_output(self._before_backward))
        for param in self.params:
            param.register_post_accumulate_grad_hook(self._on_grad)

    def _indices(self, module: nn.Module) -> list[int]:
        """Return the groups of a unit, or of a module's own parameters."""
        params = module.parameters(recurse=self._is_unit(module))
        return sorted({self._group_of[param] for param in params})

    def _is_unit(self, module: nn.Module) -> bool:
        first = next(module.parameters(), None)
        return first is not None and self._groups[self._group_of[first]].unit is not None

    def _before_forward(self, module: nn.Module, _args: object) -> None:
        needed = self._indices(module)
        self._gathering.gather(needed, forward=None if module in self._in_backward else True)
        self._gathering.wait(needed)

    def _after_unit_forward(self, unit: nn.Module, _args: object, _output: object) -> None:
        self._gathering.release(self._indices(unit), lazily=unit in self._in_backward)

    def _before_unit_backward(self, unit: nn.Module) -> None:
        self._in_backward.update(unit.modules())
        needed = self._indices(unit)
        self._gathering.gather(needed, forward=False)
        self._gathering.wait(needed)

    def _after_unit_backward(self, unit: nn.Module) -> None:
        self._gathering.release(self._indices(unit))
        self._in_backward.difference_update(unit.modules())

    def _watch_output(self, before_backward: Callable[[nn.Module], None]) -> Callable[..., torch.Tensor]:
        def watch(module: nn.Module, _args: object, output: torch.Tensor) -> torch.Tensor:
            if output.requires_grad:
                output = output.view_as(output)
                output.register_hook(lambda _grad: before_backward(module))
            return output

        return watch

    def _watch_input(self, unit: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
        hidden, *rest = args
        if torch.is_grad_enabled() and hidden.requires_grad:
            hidden = _AfterBackward.apply(hidden, lambda: self._after_unit_backward(unit))
        return hidden, *rest

    def _before_backward(self, stage: nn.Module) -> None:
        if self._shards_parameters:
            self._in_backward.update(stage.modules())
            self._gathering.release_units_lazily()
        self._unhandled = set(self.params)
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(self._after_backward)

    def _after_backward(self) -> None:
        """Reduce parameters that got no gradient as well, and free the whole gradients."""
        for param in self.params:
            if param in self._unhandled:
                self._on_grad(param)
        if self._reduces_each_time or (self._overlaps_reduce and self.is_last_microbatch):
            self._reducing.reset()

    @torch.no_grad()
    def _on_grad(self, param: torch.Tensor) -> None:
        """Add the gradient to the main gradient, or put it where it is reduced from."""
        if not isinstance(param, nn.Parameter):
            raise TypeError("a gradient arrived for something that is not a parameter")
        index = self._group_of[param]
        buffer = self._grads[index]
        if param.grad is not None:
            self._observer.role("gradient", [param.grad])
        if buffer.is_distributed:
            place = buffer.item(self._reducing.whole_gradient(index), param)
            place.zero_() if param.grad is None else place.copy_(param.grad)
        elif param.grad is not None:
            buffer.item(buffer.data, param).add_(param.grad)
        param.grad = None
        self._unhandled.discard(param)
        if self._reduces_each_time or (self._overlaps_reduce and self.is_last_microbatch):
            self._reducing.arrive(index)


class _AfterBackward(Function):
    """The identity, which says when the backward of what follows has ended."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, ended: Callable[[], None]) -> torch.Tensor:
        ctx.ended = ended
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.ended()
        return grad, None


def _move(param: nn.Parameter, buffer: ShardedBuffer, bucket: torch.Tensor) -> None:
    """Let ``param`` live in ``bucket`` from now on, and keep this rank's share of it."""
    value = param.detach()
    buffer.copy_in(param, value)
    param.data = buffer.item(bucket, param)
    if bucket is not buffer.data:
        param.data.copy_(value)


def _with_units(stage: GPTStage, units: list[nn.Module]) -> Iterator[tuple[nn.Parameter, int | None]]:
    unit_of = {param: index for index, unit in enumerate(units) for param in unit.parameters()}
    for param in stage.parameters():
        if param.requires_grad:
            yield param, unit_of.get(param)


def _communication_size(config: Config, units: list[nn.Module]) -> int:
    """Return the elements of whole gradients that may wait; parameters are gathered half as far ahead."""
    parallel = config.parallel
    if parallel.suggested_communication_unit_size is not None:
        return parallel.suggested_communication_unit_size
    if parallel.data_parallel_sharding_strategy != "optim_grads_params":
        return DEFAULT_UNIT_SIZE
    elements = sum(param.numel() for unit in units for param in unit.parameters())
    return max(DEFAULT_UNIT_SIZE, elements // len(units) * 2)
