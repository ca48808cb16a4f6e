"""Remembers what storages on the card are for, by the address and the number of allocations made until then.

An address is used again and again, and times of events are not exact to the microsecond; how many blocks were
allocated before something was said tells which of an address's blocks was meant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch

from oomscope.probe.recording.categorise import Told
from oomscope.probe.recording.local_part import local_part
from oomscope.snapshot.trace import Category


class ToldBlocks:
    """What was said of blocks, in the order in which it was said.

    Args:
        allocations: returns how many blocks the allocator has handed out so far.
    """

    def __init__(self, allocations: Callable[[], int]) -> None:
        self._allocations = allocations
        self._told: list[Told] = []

    def tell(self, category: Category, tensors: Iterable[object]) -> None:
        """Say what the storages of ``tensors`` are for; what is no tensor on the card is passed over."""
        addresses = list(_addresses(tensors))
        if addresses:
            number = self._allocations()
            self._told.extend(Told(address, number, category) for address in addresses)

    @property
    def told(self) -> tuple[Told, ...]:
        """Everything that was said."""
        return tuple(self._told)


def _addresses(tensors: Iterable[object]) -> Iterator[int]:
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor):
            part = local_part(tensor)
            if part.device.type == "cuda" and (address := part.untyped_storage().data_ptr()):
                yield address
