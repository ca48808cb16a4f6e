"""What a tensor-parallel rank holds of a matrix, and what it sends when it multiplies by it.

Column-parallel layers split the output, row-parallel layers the input (Shoeybi et al. 2019). With sequence
parallelism the tensors between them are split along the sequence, and only that shard is kept for backward, which
gathers it again (Korthikanti et al. 2022, section 4.2). Every layer here saves its input and nothing else. A weight's
gradient goes to autograd, or straight into the main gradients (``gradient_accumulation_fusion``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from oomscope.model.base.device import MemoryBuffer
from oomscope.model.base.observer import Observer
from oomscope.model.base.operations import Function, gather_rows, paired, scatter_rows


class Placeholders:
    """What autograd is given for weight gradients that are in their main gradients already.

    Memory of the weight's shape that is never read, made once for each shape and kept for the whole run (Transformer
    Engine ``pytorch/module/base.py``, ``get_dummy_wgrad``): what waits for the parameter's gradient still hears of it.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._made: dict[tuple[torch.Size, torch.dtype], torch.Tensor] = {}

    def of(self, weight: torch.Tensor, *, experts: bool = False) -> torch.Tensor | None:
        """Return the placeholder of ``weight``, None where no buffer collects its gradients.

        With ``experts`` the weight [E, …] is that of E experts, which upstream are E parameters of one shape.
        """
        if not hasattr(weight, "grad_added_to_main_grad"):
            return None
        weight.grad_added_to_main_grad = True
        shape = weight.shape[1:] if experts else weight.shape
        key = (shape, weight.dtype)
        if key not in self._made:
            self._made[key] = torch.empty(shape, dtype=weight.dtype, device=weight.device)
            self._observer.role("workspace", [self._made[key]])
        if getattr(weight, "zero_out_wgrad", False):
            self._made[key].zero_()
        return self._made[key].detach()


def weight_gradient(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, placeholders: Placeholders | None
) -> torch.Tensor | None:
    """Return gradᵀ · x, or with ``placeholders`` what stands for it once ``weight.main_grad`` has it."""
    grad_rows, x_rows = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
    main_grad: torch.Tensor | None = getattr(weight, "main_grad", None) if placeholders is not None else None
    if main_grad is None or placeholders is None:
        return grad_rows.t().mm(x_rows)
    add_weight_gradient(main_grad, grad_rows, x_rows)
    return placeholders.of(weight)


def add_weight_gradient(main_grad: torch.Tensor, grad: torch.Tensor, x: torch.Tensor) -> None:
    """Add gradᵀ · x to ``main_grad`` without a temporary of its size (on accelerators)."""
    if main_grad.dtype == grad.dtype:
        main_grad.addmm_(grad.t(), x)
    elif main_grad.device.type == "cpu":  # torch has the kernel of mixed precision for accelerators only
        main_grad.addmm_(grad.t().to(main_grad.dtype), x.to(main_grad.dtype))
    else:
        torch.ops.aten.addmm.dtype_out(main_grad, grad.t(), x, main_grad.dtype, out=main_grad)


@dataclass(frozen=True, kw_only=True)
class TensorParallel:
    """One rank's place in its tensor-parallel group, and how the group works."""

    group: dist.ProcessGroup | None = None
    rank: int = 0
    size: int = 1
    sequence_parallel: bool = False
    """Whether what lies between the parallel regions is split along the sequence."""
    placeholders: Placeholders | None = None
    """Stand-ins for weight gradients, which are added straight into ``weight.main_grad``, where the weight has one;
    None gives them to autograd."""
    keep_grad: Callable[[torch.Tensor], bool] | None = None
    """Takes the gradient of a column-parallel layer's output, and returns whether the weight's gradient is computed
    from it later."""
    buffer: MemoryBuffer | None = None
    """Memory in which inputs are gathered; None gathers them into fresh memory."""


# Collectives on plain tensors ------------------------------------------------------------------------------------


def all_reduce(x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
    """Sum ``x`` over the group in place, and return it."""
    if tp.size > 1:
        dist.all_reduce(x, group=tp.group)
    return x


def all_gather_sequence(x: torch.Tensor, tp: TensorParallel, buffer: MemoryBuffer | None = None) -> torch.Tensor:
    """Return [s, …] from the shards [s/t, …] of all ranks, in ``buffer`` if there is one."""
    return gather_rows(x, tp.group, tp.size, buffer)


def reduce_scatter_sequence(x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
    """Return this rank's shard [s/t, …] of the sum of ``x`` [s, …] over the group."""
    return scatter_rows(x, tp.group, tp.size)


def flat_shard(x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
    """Return a copy of this rank's part [numel/t] of ``x``, flattened."""
    return x.detach().reshape(-1).chunk(tp.size)[tp.rank].clone()


# The same with gradients -----------------------------------------------------------------------------------------


class _Reduce(Function):
    """All-reduce forward, identity backward (the g of Shoeybi et al.)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
        ctx.mark_dirty(x)
        return all_reduce(x, tp)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


def enter_region(x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
    """Return [s, …] of ``x`` [s/σ, …] for every rank's own heads; their gradients are summed on the way back."""
    if tp.size == 1:
        return x
    if tp.sequence_parallel:
        return paired(x, lambda x: all_gather_sequence(x, tp), lambda grad: reduce_scatter_sequence(grad, tp))
    return paired(x, lambda x: x.view_as(x), lambda grad: all_reduce(grad.contiguous(), tp))  # f of Shoeybi et al.


def reduce_from_region(x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
    """Sum the partial results of all ranks, in place."""
    return _Reduce.apply(x, tp) if tp.size > 1 else x


def reduce_scatter_to_sequence(x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
    """Sum the partial results [s, …] of all ranks and keep this rank's rows [s/t, …]."""
    return paired(x, lambda x: reduce_scatter_sequence(x, tp), lambda grad: all_gather_sequence(grad, tp))


def scatter_to_sequence(x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
    """Keep a copy of this rank's rows [s/t, …] of ``x`` [s, …], which all ranks hold alike; a view would keep ``x``."""
    return paired(x, lambda x: x.chunk(tp.size)[tp.rank].clone(), lambda grad: all_gather_sequence(grad, tp))


def gather_columns(x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
    """Return [s, b, h] from the columns [s, b, h/t] of all ranks.

    Gathered along the rows first, then put side by side (Megatron-Core ``mappings.py::_gather_along_last_dim``).
    """
    if tp.size == 1:
        return x
    return paired(
        x,
        lambda x: torch.cat(all_gather_sequence(x, tp).chunk(tp.size), dim=-1),
        lambda grad: grad.chunk(tp.size, dim=-1)[tp.rank].contiguous(),
    )


def view_of_sequence(x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
    """Return this rank's rows [s/σ, b, h] of ``x`` [s, b, h], which all ranks hold alike; all of ``x`` stays alive."""
    if not tp.sequence_parallel:
        return x
    return paired(x, lambda x: x.chunk(tp.size)[tp.rank], lambda grad: all_gather_sequence(grad, tp))


# Linear layers ---------------------------------------------------------------------------------------------------


def _matmul(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return x · weightᵀ (+ bias) in one kernel and one allocation; no view, so that its user may overwrite it."""
    rows = x.reshape(-1, x.shape[-1])
    out = torch.mm(rows, weight.t()) if bias is None else torch.addmm(bias, rows, weight.t())
    return torch.ops.aten._unsafe_view(out, (*x.shape[:-1], weight.shape[0]))  # type: ignore[no-any-return]


def _bias_gradient(grad: torch.Tensor) -> torch.Tensor:
    return grad.reshape(-1, grad.shape[-1]).sum(0)


class _ColumnLinear(Function):
    """Megatron-Core ``layers.py::LinearWithGradAccumulationAndAsyncCommunication``, in its order of allocations."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, tp: TensorParallel
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.tp = tp
        ctx.has_bias = bias is not None
        return _matmul(all_gather_sequence(x, tp, tp.buffer) if tp.sequence_parallel else x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, None]:
        x, weight = ctx.saved_tensors
        tp: TensorParallel = ctx.tp
        is_deferred = tp.keep_grad is not None and tp.keep_grad(grad)
        if tp.sequence_parallel and not is_deferred:
            x = all_gather_sequence(x, tp, tp.buffer)
        grad_x = grad.matmul(weight)
        grad_in = reduce_scatter_sequence(grad_x, tp) if tp.sequence_parallel else all_reduce(grad_x, tp)
        grad_weight = None if is_deferred else weight_gradient(grad, x, weight, tp.placeholders)
        if tp.keep_grad is not None and tp.placeholders is not None:
            tp.placeholders.of(weight)
            grad_weight = None  # the gradient is complete only when all that was put off is in it
        return grad_in, grad_weight, _bias_gradient(grad) if ctx.has_bias else None, None


class _RowLinear(Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, tp: TensorParallel
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.tp = tp
        ctx.has_bias = bias is not None
        if tp.size == 1:
            return _matmul(x, weight, bias)
        partial = _matmul(x, weight, None)
        out = reduce_scatter_sequence(partial, tp) if tp.sequence_parallel else all_reduce(partial, tp)
        return out if bias is None else out.add_(bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, None]:
        x, weight = ctx.saved_tensors
        tp: TensorParallel = ctx.tp
        grad_bias = _bias_gradient(grad) if ctx.has_bias else None
        if tp.sequence_parallel:
            grad = all_gather_sequence(grad, tp)
        return grad.matmul(weight), weight_gradient(grad, x, weight, tp.placeholders), grad_bias, None


def column_parallel_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, tp: TensorParallel
) -> torch.Tensor:
    """Return [s, b, out/t] from ``x`` [s/σ, b, in] and this rank's rows of the weight [out/t, in]."""
    return _ColumnLinear.apply(x, weight, bias, tp)  # type: ignore[no-any-return]


class _ParallelLinear(nn.Module):
    """A linear layer split over the ranks: how it is split is for the subclass to say."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None, tp: TensorParallel) -> None:
        super().__init__()
        self.weight = weight
        self.bias = bias
        self._tp = tp


class ColumnParallelLinear(_ParallelLinear):
    """A linear layer whose output features are split over the ranks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [s, b, out/t] from [s/σ, b, in]."""
        return column_parallel_linear(x, self.weight, self.bias, self._tp)


class RowParallelLinear(_ParallelLinear):
    """A linear layer whose input features are split over the ranks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [s/σ, b, out] from [s, b, in/t]; the bias is added once, after the sum over the ranks."""
        return _RowLinear.apply(x, self.weight, self.bias, self._tp)  # type: ignore[no-any-return]
