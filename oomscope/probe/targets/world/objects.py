"""Object collectives on a card that computes nothing: the greatest of the gathered sizes is found on the host.

``all_gather_object`` pads each rank's bytes to the greatest size, which it has the card compute. The sizes themselves
are held, as they were exchanged. So the operation is run as it is, with what it allocates, and its result is computed
on the host from the held sizes and written to the card.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.distributed import distributed_c10d as c10d
from torch.utils._python_dispatch import TorchDispatchMode

from oomscope.probe.targets.world.peers import replace

_COLLECTIVES: Final = ("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list")
_MOST_ELEMENTS: Final = 1 << 16


def answer_object_collectives() -> None:
    """Let the object collectives of torch.distributed find the sizes of their objects on a virtual card."""
    for name in _COLLECTIVES:
        replace(name, _with_sizes(getattr(c10d, name)))


def _with_sizes(collective: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(collective)
    def called(*args: Any, **kwargs: Any) -> Any:
        with HeldSizes():  # type: ignore[no-untyped-call]
            return collective(*args, **kwargs)

    return called


class HeldSizes(TorchDispatchMode):
    """Comparisons of integers on the card have the result that the host computes of the same values."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run ``func``; write what the host computes where it compares sizes."""
        kwargs = kwargs or {}
        if func not in _COMPARISONS or not all(map(_are_sizes, args)):
            return func(*args, **kwargs)
        on_host = [arg.cpu() if isinstance(arg, torch.Tensor) else arg for arg in args]
        # A kernel is given their memory, and the card then holds nothing of it.
        around = [(whole, whole.cpu()) for whole in map(_whole, args) if whole is not None]
        result = func(*args, **kwargs)
        for whole, values in around:
            whole.copy_(values)
        result.copy_(func(*on_host, **kwargs))
        return result


_COMPARISONS: Final = {torch.ops.aten.max.default, torch.ops.aten.gt.Tensor, torch.ops.aten.lt.Tensor}
"""``max`` of a tensor, and Python's ``max`` of a list of tensors, as it was up to torch 2.14."""


def _are_sizes(value: Any) -> bool:
    """Whether a value is a number, or a small tensor of sizes on a card."""
    if not isinstance(value, torch.Tensor):
        return isinstance(value, int)
    return value.is_cuda and value.dtype == torch.int64 and value.numel() <= _MOST_ELEMENTS


def _whole(value: Any) -> torch.Tensor | None:
    """Return the memory of which a tensor may be a part, as one tensor; None for a number."""
    if not isinstance(value, torch.Tensor):
        return None
    count = value.untyped_storage().nbytes() // value.element_size()
    return value.as_strided((count,), (1,), 0)
