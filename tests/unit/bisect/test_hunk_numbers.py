"""What a choice of a commit's hunks is called while it is probed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.bisect.changes.hunks import numbered


@pytest.mark.parametrize(
    ("changes", "called"),
    [
        ([], "no hunk"),
        ([3], "hunk 4 of 21"),
        ([0, 3], "hunks 1, 4 of 21"),
        ([0, 1], "hunks 1, 2 of 21"),
        ([0, 1, 2, 3, 16], "hunks 1-4, 17 of 21"),
        ([each for each in range(21) if each != 3], "hunks 1-3, 5-21 of 21"),
        (range(0, 20, 2), "10 of 21 hunks"),
        (range(21), "all 21 hunks"),
    ],
)
def test_hunks_go_by_number_as_far_as_that_is_short(changes: list[int], called: str) -> None:
    assert numbered(list(changes), 21) == called


@given(st.frozensets(st.integers(0, 199)))
def test_the_words_are_few(changes: frozenset[int]) -> None:
    assert len(numbered(sorted(changes), 200)) <= 48
