"""Autograd functions with a typed ``apply``, and the collectives on whole tensors under the names of the torch at hand.

torch 2.13 renamed ``all_gather_into_tensor`` and ``reduce_scatter_tensor``; the old names warn there and the new
ones do not exist before.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


class Function(torch.autograd.Function):
    """An operation with a backward of its own, which says exactly what it saves."""

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Run ``forward`` and record the operation."""
        return super().apply(*args)


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
