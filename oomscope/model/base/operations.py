"""Autograd functions with a typed ``apply``, and the collectives on whole tensors under the names of the torch at hand.

torch 2.13 renamed ``all_gather_into_tensor`` and ``reduce_scatter_tensor``; the old names warn there and the new
ones do not exist before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import graph

from oomscope.model.base.device import MemoryBuffer

Move = Callable[[torch.Tensor], torch.Tensor]


class Function(torch.autograd.Function):
    """An operation with a backward of its own, which states exactly what it saves."""

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Run ``forward`` and record the operation."""
        return super().apply(*args)


class _Paired(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, there: Move, back: Move) -> torch.Tensor:
        ctx.back = back
        return there(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.back(grad), None, None


def paired(x: torch.Tensor, there: Move, back: Move) -> torch.Tensor:
    """Return ``there(x)``, whose gradient is sent through ``back``; nothing is kept for it."""
    return _Paired.apply(x, there, back)  # type: ignore[no-any-return]


def run_backward(outputs: Sequence[torch.Tensor | graph.GradientEdge], gradients: Sequence[torch.Tensor]) -> None:
    """Differentiate ``outputs``, given the gradient of each, in its shape.

    ``torch.autograd.backward`` compares the shapes with sympy, whose import takes as long as a rank's iteration;
    Megatron-Core calls the engine as well (schedules.py::custom_backward).
    """
    graph._engine_run_backward(
        tuple(outputs), tuple(gradients), False, False, (), allow_unreachable=True, accumulate_grad=True
    )


_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def all_gather(
    gathered: torch.Tensor, shard: torch.Tensor, group: dist.ProcessGroup | None, *, async_op: bool = False
) -> dist.Work | None:
    """Fill ``gathered`` with the ``shard`` of every rank, in rank order along the first dimension."""
    return _all_gather(gathered, shard, group=group, async_op=async_op)  # type: ignore[no-any-return]


def reduce_scatter(
    shard: torch.Tensor, whole: torch.Tensor, group: dist.ProcessGroup | None, *, async_op: bool = False
) -> dist.Work | None:
    """Fill ``shard`` with this rank's part, along the first dimension, of the sum of ``whole`` over the ranks."""
    return _reduce_scatter(shard, whole, group=group, async_op=async_op)  # type: ignore[no-any-return]


def gather_rows(
    x: torch.Tensor, group: dist.ProcessGroup | None, ranks: int, buffer: MemoryBuffer | None = None
) -> torch.Tensor:
    """Return [ranks·n, …] from the shards [n, …] of all ranks, in ``buffer`` if there is one."""
    gathered = _rows(x.shape[0] * ranks, x, buffer)
    all_gather(gathered, x.contiguous(), group)
    return gathered


def scatter_rows(
    x: torch.Tensor, group: dist.ProcessGroup | None, ranks: int, buffer: MemoryBuffer | None = None
) -> torch.Tensor:
    """Return this rank's shard [n/ranks, …] of the sum of ``x`` [n, …] over the ranks, in ``buffer`` if given."""
    shard = _rows(x.shape[0] // ranks, x, buffer)
    reduce_scatter(shard, x.contiguous(), group)
    return shard


def _rows(number: int, like: torch.Tensor, buffer: MemoryBuffer | None) -> torch.Tensor:
    make = torch.empty if buffer is None else buffer.take
    return make((number, *like.shape[1:]), dtype=like.dtype, device=like.device)
