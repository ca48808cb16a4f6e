from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from oomscope.capture.steps import FIRST_REPORT, LEAST_GROWTH, Coverage, Growth
from oomscope.units import GiB


def test_the_ring_is_compared_with_the_second_step() -> None:
    counts = iter([5_000, 15_000])
    coverage = Coverage(1_000_000, lambda: next(counts))
    said = [coverage.after(step) for step in (1, 2, 3)]
    assert said == [None, ("history of 1,000,000 events covers about 33.3 steps", False), None]


def test_many_steps_are_reported_without_tenths() -> None:
    counts = iter([0, 45])
    coverage = Coverage(1_000_000, lambda: next(counts))
    coverage.after(1)
    assert coverage.after(2) == ("history of 1,000,000 events covers about 7,407 steps", False)


def test_a_ring_that_holds_less_than_two_steps_is_a_warning() -> None:
    counts = iter([0, 10_000])
    coverage = Coverage(30_000, lambda: next(counts))
    coverage.after(1)
    assert coverage.after(2) == (
        "history of 30,000 events covers about 1.0 steps: raise --max-entries to 60,000 or more",
        True,
    )


def test_a_program_that_allocates_nothing_says_nothing() -> None:
    coverage = Coverage(30_000, lambda: 7)
    assert [coverage.after(step) for step in (1, 2)] == [None, None]


def reports(values: list[int]) -> list[str | None]:
    given = iter(values)
    growth = Growth(lambda: next(given))
    return [growth.after_step() for _ in values]


def test_growth_is_reported_after_three_steps_and_after_twice_as_many() -> None:
    said = reports([n * GiB for n in range(1, 10)])
    assert [number for number, text in enumerate(said) if text] == [3, 6]
    assert str(said[3]).startswith("live memory has grown in 3 steps in a row, 1.00 GiB a step, to 4.00 GiB")


@given(st.lists(st.integers(0, 8 * GiB), max_size=40))
def test_what_ever_stops_growing_is_not_reported(values: list[int]) -> None:
    for number, text in enumerate(reports(values)):
        steps = values[max(0, number - FIRST_REPORT) : number + 1]
        rises = all(after - before >= LEAST_GROWTH for before, after in itertools.pairwise(steps))
        assert text is None or (rises and len(steps) == FIRST_REPORT + 1)
