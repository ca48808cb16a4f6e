from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oomscope.bisect.search.steps import heaviest

WEIGHTS = st.lists(st.integers(-9, 9), max_size=8)


def found(weights: list[int], *, is_culprit_known: bool = False) -> int | None:
    """Return the number of the step."""
    return heaviest(range(len(weights)), weights.__getitem__, is_culprit_known=is_culprit_known)


def test_of_a_pair_that_cancels_it_is_the_one_that_began_it() -> None:
    assert found([0, -40, 40]) == 1
    assert found([0, 40, -40]) == 1
    assert found([5, -40, 40, -5]) == 1


def test_it_leads_where_the_range_leads() -> None:
    assert found([10, -9]) == 0
    assert found([-10, 9]) == 0
    assert found([30, -20, -20]) == 1


def test_what_filled_the_card_added_bytes() -> None:
    assert found([1, -40], is_culprit_known=True) == 0
    assert found([-1], is_culprit_known=True) is None


def test_nothing_is_heaviest_where_nothing_changed() -> None:
    assert found([]) is None
    assert found([0, 0]) is None


@given(WEIGHTS)
def test_no_step_in_the_direction_of_the_sum_is_heavier(weights: list[int]) -> None:
    chosen, total = found(weights), sum(weights)
    if chosen is None:
        assert not any(weights)
    elif total:
        assert all(each * total <= weights[chosen] * total for each in weights)
    else:
        assert all(abs(each) <= abs(weights[chosen]) for each in weights)
