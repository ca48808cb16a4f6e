"""Equal rows have equal numbers, in the order of their values."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from oomscope.snapshot.infer.life import numbered


def test_combinations_are_numbered_in_order():
    assert numbered(np.array([5, 1, 5, 1]), np.array([0, 7, 0, -7])).tolist() == [2, 1, 2, 0]
    assert numbered(np.array([], dtype=np.int64)).tolist() == []


@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2)), min_size=1, max_size=12))
def test_a_number_is_the_place_of_the_row_among_different_ones(rows):
    ordered = sorted(set(rows))
    assert numbered(*np.array(rows).T).tolist() == [ordered.index(row) for row in rows]
