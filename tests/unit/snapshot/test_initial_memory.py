"""Whose pages were unmapped is told by pages that touch, found without looking at all of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oomscope.snapshot.replay.initial_memory import Owner, _Owned

SMALL, LARGE = (Owner(0, pool, is_expandable=True) for pool in ("small", "large"))
RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20), st.sampled_from([SMALL, LARGE])), max_size=12)


@given(RANGES, st.integers(0, 80), st.integers(1, 10))
def test_an_owner_is_found_where_any_range_touches(ranges, start, length):
    owned = _Owned()
    for low, size, owner in ranges:
        owned.add(low, low + size, owner)
    touching = [(low + size, owner) for low, size, owner in ranges if low <= start + length and start <= low + size]
    found = owned.touching(start, start + length, 0)
    if not touching:
        assert found is None
    else:
        farthest = max(end for end, _ in touching)
        assert found in {owner for end, owner in touching if end == farthest}
    assert owned.touching(start, start + length, 1) is None
