"""What repeats, such as stacks and moments, stored once and named by number."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Item = TypeVar("Item", bound=Hashable)


class Interned(Generic[Item]):
    """Distinct items in order of first sight; item 0 is the one that stands for "unknown"."""

    def __init__(self, unknown: Item) -> None:
        self._ids: dict[Item, int] = {unknown: 0}

    def id_of(self, item: Item) -> int:
        """Return the id of ``item``, a new one at first sight."""
        return self._ids.setdefault(item, len(self._ids))

    def items(self) -> tuple[Item, ...]:
        """Return the distinct items; an item's id is its position."""
        return tuple(self._ids)


def counted(numbers: NDArray[np.integer]) -> tuple[list[int], NDArray[np.int64]]:
    """Return the distinct numbers, none negative or very large, and the position of each of ``numbers`` among them."""
    counts = np.bincount(numbers)
    used = np.flatnonzero(counts)
    position = np.zeros(len(counts), dtype=np.int64)
    position[used] = np.arange(len(used))
    return used.tolist(), position[numbers]
