"""A set of addresses, kept as disjoint ranges in order: what of a reservation is mapped."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class AddressRanges:
    """Half-open ranges ``[start, end)``; ranges that touch are one.

    A change finds the ranges that it touches by bisection and looks at no others; the list moves all that lie behind,
    so that very many ranges that touch nowhere and come in no order take time with their square.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._ends, strict=True)

    def __bool__(self) -> bool:
        return bool(self._starts)

    def add(self, start: int, end: int) -> bool:
        """Take a range in; return whether nothing of it was there before."""
        if start == end:
            return True
        first, beyond = bisect_left(self._ends, start), bisect_right(self._starts, end)
        touched = zip(self._starts[first:beyond], self._ends[first:beyond], strict=True)
        was_free = all(low == end or high == start for low, high in touched)
        if first < beyond:
            start, end = min(start, self._starts[first]), max(end, self._ends[beyond - 1])
        self._starts[first:beyond], self._ends[first:beyond] = [start], [end]
        return was_free

    def remove(self, start: int, end: int) -> bool:
        """Take a range out; return whether all of it was there."""
        first, beyond = bisect_right(self._ends, start), bisect_left(self._starts, end)
        touched = list(zip(self._starts[first:beyond], self._ends[first:beyond], strict=True))
        was_there = len(touched) == 1 and touched[0][0] <= start and end <= touched[0][1]
        pieces = [piece for low, high in touched for piece in ((low, min(high, start)), (max(low, end), high))]
        left = [(low, high) for low, high in pieces if low < high]
        self._starts[first:beyond] = [low for low, _ in left]
        self._ends[first:beyond] = [high for _, high in left]
        return was_there
