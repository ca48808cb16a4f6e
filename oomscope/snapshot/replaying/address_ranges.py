"""A set of addresses, kept as disjoint ranges in order: what of a reservation is mapped."""

from __future__ import annotations

from collections.abc import Iterator


class AddressRanges:
    """Half-open ranges ``[start, end)``; ranges that touch are one."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._ranges)

    def add(self, start: int, end: int) -> bool:
        """Take a range in; return whether nothing of it was there before."""
        touched = [(low, high) for low, high in self._ranges if low <= end and start <= high]
        apart = [(low, high) for low, high in self._ranges if low > end or start > high]
        whole = min([start, *(low for low, _ in touched)]), max([end, *(high for _, high in touched)])
        self._ranges = sorted([*apart, whole])
        return all(low == end or high == start for low, high in touched)

    def remove(self, start: int, end: int) -> bool:
        """Take a range out; return whether all of it was there."""
        was_there = any(low <= start and end <= high for low, high in self._ranges)
        pieces = [piece for low, high in self._ranges for piece in ((low, min(high, start)), (max(low, end), high))]
        self._ranges = [(low, high) for low, high in pieces if low < high]
        return was_there
