"""Ranges of addresses are the set of the addresses in them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from oomscope.snapshot.replay.initial_memory import AddressRanges

CHANGES = st.lists(st.tuples(st.booleans(), st.integers(0, 24), st.integers(1, 8)), max_size=24)


@given(CHANGES)
def test_ranges_are_a_set(changes: list[tuple[bool, int, int]]) -> None:
    ranges, members = AddressRanges(), set[int]()
    for is_added, start, length in changes:
        span = set(range(start, start + length))
        if is_added:
            assert ranges.add(start, start + length) == members.isdisjoint(span)
            members |= span
        else:
            assert ranges.remove(start, start + length) == (span <= members)
            members -= span
        assert {address for low, high in ranges for address in range(low, high)} == members
        assert all(end < start for (_, end), (start, _) in pairwise(ranges))
        assert bool(ranges) == bool(members)


def test_no_bytes_are_no_range() -> None:
    ranges = AddressRanges()
    assert ranges.add(5, 5)
    assert not ranges
