"""What a planner could do that knew every lifetime in advance: an address for each block, no allocator being asked.

A yardstick between the packing lower bound and what allocators reach: no allocator setting is a plan, since a program
asks for memory without saying for how long.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from oomscope.allocator.constants import MIN_BLOCK
from oomscope.snapshot.lifetimes import Lifetimes

MOST_BLOCKS: Final = 20_000
"""Beyond these a plan, whose cost grows with the square of the blocks, would take longer than all replays together."""


def planned_bytes(table: Lifetimes) -> int | None:
    """Return the bytes that a first-fit plan by lifetimes needs; None where there are more than :data:`MOST_BLOCKS`.

    From the largest block to the smallest, each goes to the lowest address at which nothing lies while it lives
    (Pisarchyk and Lee 2020, "Greedy by Size"). Sizes are multiples of 512 bytes, as CUDA aligns them; a block counts
    until it is back in its pool.
    """
    blocks = np.flatnonzero(table.completed > table.born)
    if len(blocks) > MOST_BLOCKS:
        return None
    born, gone = table.born[blocks], table.completed[blocks]
    size = (table.size[blocks] + MIN_BLOCK - 1) // MIN_BLOCK * MIN_BLOCK
    plan = _Plan(len(blocks))
    for block in np.lexsort((born, born - gone, -size)).tolist():
        plan.place(int(born[block]), int(gone[block]), int(size[block]))
    return plan.bytes


class _Plan:
    """Blocks with their addresses, ordered by address."""

    def __init__(self, room: int) -> None:
        self.bytes = 0
        self._count = 0
        self._columns = np.zeros((4, room), dtype=np.int64)

    def place(self, born: int, gone: int, size: int) -> None:
        """Put a block at the lowest address that is free for all of its life."""
        starts, ends, births, deaths = self._columns[:, : self._count]
        neighbours = np.flatnonzero((births < gone) & (deaths > born))
        start = _first_gap(starts[neighbours], ends[neighbours], size)
        at = int(np.searchsorted(starts, start))
        self._columns[:, at + 1 : self._count + 1] = self._columns[:, at : self._count]
        self._columns[:, at] = start, start + size, born, gone
        self._count += 1
        self.bytes = max(self.bytes, start + size)


def _first_gap(starts: NDArray[np.int64], ends: NDArray[np.int64], size: int) -> int:
    """Return the lowest address with ``size`` bytes before the next start; ``starts`` ascend."""
    if not len(starts):
        return 0
    occupied = np.concatenate([[0], np.maximum.accumulate(ends)])
    fits = np.flatnonzero(starts - occupied[:-1] >= size)
    return int(occupied[fits[0]] if len(fits) else occupied[-1])
