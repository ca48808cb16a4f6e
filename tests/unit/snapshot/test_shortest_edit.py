"""The longest common subsequence against the table that everybody knows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.snapshot.compare.shortest_edit import TooDifferentError, common

ROWS = st.integers(1, 9).flatmap(lambda values: st.lists(st.integers(0, values), max_size=24))


def length_of_longest(one: list[int], other: list[int]) -> int:
    above = [0] * (len(other) + 1)
    for value in one:
        row = [0]
        for position, candidate in enumerate(other):
            row.append(above[position] + 1 if value == candidate else max(row[position], above[position + 1]))
        above = row
    return above[-1]


def numbers(row) -> np.ndarray:
    return np.array(row, dtype=np.int64)


@given(ROWS, ROWS)
def test_it_is_common_in_order_and_as_long_as_can_be(one, other):
    old, new = common(numbers(one), numbers(other))
    assert len(old) == len(new) == length_of_longest(one, other)
    assert [one[place] for place in old] == [other[place] for place in new]
    assert (np.diff(old) > 0).all()
    assert (np.diff(new) > 0).all()


def test_what_was_put_in_and_taken_out_of_a_long_row_is_found():
    draw = np.random.default_rng(0)
    row = draw.integers(0, 300, 20_000)
    out = np.sort(draw.choice(20_000, 150, replace=False))
    put = np.full(150, 999)
    changed = np.insert(np.delete(row, out), draw.choice(19_000, 150, replace=False), put)
    old, new = common(row, changed)
    assert len(old) == 20_000 - 150
    assert sorted(set(range(len(changed))) - set(new.tolist())) == np.flatnonzero(changed == 999).tolist()


def test_rows_that_have_nothing_in_common_are_refused_beyond_a_bound():
    with pytest.raises(TooDifferentError, match="more than 50 insertions and deletions"):
        common(numbers(range(60)), numbers(range(100, 160)), most_edits=50)


def test_empty_rows_have_nothing_in_common():
    for one, other in (([], []), ([1], []), ([], [1, 2])):
        old, new = common(numbers(one), numbers(other))
        assert len(old) == len(new) == 0
