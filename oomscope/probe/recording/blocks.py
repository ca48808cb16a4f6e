"""Labels storages on the card with what they are for, by address and by the number of allocations made until then.

An address is used again and again, and times of events are not exact to the microsecond; the number of blocks allocated
before a label identifies which of an address's blocks it means. Collectives are followed here: what a rank receives is
communication for as long as it only passes through.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from types import FunctionType, ModuleType
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from oomscope.probe.recording.block_label import BlockLabel
from oomscope.probe.recording.replaced import replaced
from oomscope.snapshot.trace import Category


class LabelledBlocks:
    """The labels of blocks, in the order in which they were recorded.

    It is kept in columns: Python's collector runs by how many objects a program has made, and these are not the
    program's.

    Args:
        allocations: returns how many blocks the allocator has handed out so far, of the card with that index.
    """

    def __init__(self, allocations: Callable[[int], int]) -> None:
        self._allocations = allocations
        self._addresses, self._numbers = array("Q"), array("Q")
        self._categories: list[Category] = []

    @property
    def labels(self) -> list[BlockLabel]:
        """All labels."""
        return list(map(BlockLabel, self._addresses, self._numbers, self._categories))

    def cards_used(self) -> int:
        """Return on how many cards the program has allocated."""
        return sum(self._allocations(card) > 0 for card in range(torch.cuda.device_count()))

    def label(self, category: Category, tensors: Iterable[object]) -> None:
        """Label the storages of ``tensors``; anything that is no tensor on the card is skipped."""
        numbers: dict[int, int] = {}
        for card, address in _addresses(tensors):
            if card not in numbers:
                numbers[card] = self._allocations(card)
            self._addresses.append(address)
            self._numbers.append(numbers[card])
            self._categories.append(category)


def _addresses(tensors: Iterable[object]) -> Iterator[tuple[int, int]]:
    """Yield the card and the address of each storage."""
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor):
            for part in _plain_parts(local_part(_unwrapped(tensor))):
                if part.device.type == "cuda" and (address := part.untyped_storage().data_ptr()):
                    yield part.device.index, address


def _unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Return what transforms of ``torch.func`` (vmap, grad) have wrapped."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def _plain_parts(tensor: Any) -> Iterator[torch.Tensor]:
    """Return the tensors that one without storage of its own consists of: wrappers (quantised states), sparse ones."""
    if not is_traceable_wrapper_subclass(tensor):
        if tensor.layout is torch.sparse_coo:
            yield from (tensor._indices(), tensor._values())
        elif tensor.layout is torch.strided:
            yield tensor
        return
    names, _ = tensor.__tensor_flatten__()
    for name in names:
        yield from _plain_parts(getattr(tensor, name))


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a DTensor that this rank keeps; any other tensor is its own."""
    part: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return part


def tensors_in(value: object, *, objects: int = 0) -> Iterator[torch.Tensor]:
    """Yield the tensors of lists, tuples and dictionaries, each of these once.

    Args:
        value: where to begin.
        objects: how many objects inside each other are entered by their attributes. Modules and optimizers are not.
    """
    seen: set[int] = set()
    rest = [(value, objects)]
    while rest:
        each, left = rest.pop()
        if isinstance(each, torch.Tensor):
            yield each
        elif id(each) in seen:
            continue
        elif isinstance(each, (list, tuple, dict)):
            seen.add(id(each))
            rest.extend((member, left) for member in (each.values() if isinstance(each, dict) else each))
        elif left and hasattr(each, "__dict__") and not isinstance(each, _NOT_ENTERED):
            seen.add(id(each))
            rest.append((vars(each), left - 1))


_NOT_ENTERED: Final = (torch.nn.Module, torch.optim.Optimizer, type, ModuleType, FunctionType)
"""Objects that refer to far more than what they hold."""


_RECEIVING: Final = (
    "_allgather_base",
    "_reduce_scatter_base",
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "alltoall",
    "alltoall_base",
    "gather",
    "gather_into_tensor",
    "gather_single",
    "recv",
    "recv_anysource",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
)
"""Methods of process groups whose first argument is written; what a collective changes in place keeps its purpose."""


def collectives_labelled(blocks: LabelledBlocks) -> AbstractContextManager[None]:
    """Label what collectives write while the block runs."""
    group: Any = getattr(dist, "ProcessGroup", None)
    names = [name for name in _RECEIVING if group is not None and name in vars(group)]
    return replaced([(group, name, _labelling(getattr(group, name), blocks)) for name in names])


def _labelling(method: Callable[..., Any], blocks: LabelledBlocks) -> Callable[..., Any]:
    def labels(group: Any, *args: Any, **kwargs: Any) -> Any:
        blocks.label(Category.COMMUNICATION, tensors_in(args[0] if args else ()))
        return method(group, *args, **kwargs)

    return labels
