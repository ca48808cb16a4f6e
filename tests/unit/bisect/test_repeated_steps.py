"""Steps are found where measurements differ from probe to probe, and noise is not taken for steps."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.bisect.search.measured import Bytes
from oomscope.bisect.search.repeated_steps import ENDS_MEASURED, RepeatedStepSearch, Samples
from oomscope.bisect.search.spread import Spread, mean
from oomscope.bisect.search.steps import StepSearch, Threshold
from oomscope.bisect.search.steps import run as run_plain

NOTHING = Threshold(overhead_bytes=0)
Measure = Callable[[int], Bytes | None]


def run(search: RepeatedStepSearch, measure: Measure) -> tuple[RepeatedStepSearch, list[int]]:
    asked = []
    while (position := search.wanted) is not None:
        asked.append(position)
        search = search.told(position, measure(position))
    return search, asked


def over(last: int, repeats: int = 12, threshold: Threshold = NOTHING) -> RepeatedStepSearch:
    return RepeatedStepSearch.over(last, threshold, 0.95, repeats)


def level(position: int, steps: Mapping[int, int]) -> int:
    return 10**6 + sum(size for at, size in steps.items() if at <= position)


def same(live: int) -> Bytes:
    return Bytes(requested_bytes=live, reserved_bytes=live)


def gaussian(steps: Mapping[int, int], sigma: float, rng: random.Random) -> Measure:
    return lambda position: same(level(position, steps) + round(rng.gauss(0, sigma)))


@given(st.data())
def test_without_spread_the_steps_are_those_of_the_plain_search(data: st.DataObject) -> None:
    live = data.draw(st.lists(st.integers(0, 3), min_size=2, max_size=30))
    hidden = data.draw(st.sets(st.integers(1, len(live) - 1), max_size=len(live))) - {len(live) - 1}
    values: Sequence[Bytes | None] = [None if place in hidden else same(size) for place, size in enumerate(live)]
    last = len(live) - 1
    plain = run_plain(StepSearch.over(last, same(live[0]), same(live[last]), NOTHING), lambda place: values[place])
    search, asked = run(over(last), lambda place: values[place])
    assert search.steps == plain.steps
    assert sum((step.delta.requested_bytes for step in search.steps), start=0) == live[last] - live[0]
    assert asked[:ENDS_MEASURED] == [0] * ENDS_MEASURED
    assert max(asked.count(place) for place in asked) <= ENDS_MEASURED


@pytest.mark.parametrize("size", [100, 50])
def test_steps_of_several_deviations_are_found_and_nothing_else(size: int) -> None:
    found = false = 0
    for case in range(12):
        rng = random.Random(case)
        steps = dict.fromkeys(rng.sample(range(1, 129), 3), size)
        search, _ = run(over(128), gaussian(steps, 10, rng))
        found += sum(step.at in steps and step.at - step.after == 1 for step in search.steps)
        false += sum(not set(range(step.after + 1, step.at + 1)) & set(steps) for step in search.steps)
    assert found >= 34
    assert false <= 1


def test_steps_of_live_bytes_alone_claim_no_reserved_ones() -> None:
    def measure(position: int) -> Bytes:
        return Bytes(requested_bytes=level(position, {20: 500}), reserved_bytes=None)

    search, _ = run(over(64), measure)
    assert [(step.at, step.delta) for step in search.steps] == [(20, Bytes(requested_bytes=500, reserved_bytes=None))]


def test_noise_alone_makes_no_step_and_few_probes() -> None:
    probes = false = 0
    for case in range(20):
        search, asked = run(over(128), gaussian({}, 10, random.Random(case)))
        false += bool(search.steps)
        probes += len(asked)
    assert false <= 1
    assert probes / 20 < 10


def test_a_freak_measurement_is_measured_again() -> None:
    freaks = {16: 1}

    def measure(position: int) -> Bytes:
        live = level(position, {20: 10**6})
        if freaks.pop(position, 0):
            live += 10**5
        return same(live)

    search, asked = run(over(32), measure)
    assert asked.count(16) > 1
    assert [step.at for step in search.steps] == [20]


def test_a_step_is_confirmed_on_both_sides() -> None:
    search, _ = run(over(64), gaussian({30: 10_000}, 10, random.Random(2)))
    (step,) = search.steps
    assert (step.after, step.at) == (29, 30)
    assert min(search.times(29), search.times(30)) >= 2


def test_what_is_below_the_threshold_is_left_alone_however_clear() -> None:
    search, _ = run(over(64, threshold=Threshold.of(5000)), gaussian({10: 10_000, 40: 1000}, 1, random.Random(2)))
    assert [step.at for step in search.steps] == [10]


def test_repeats_end_at_their_limit_and_at_a_position_that_fails() -> None:
    rng = random.Random(4)
    failing = {0: 2}

    def measure(position: int) -> Bytes | None:
        if position in failing:
            failing[position] -= 1
            if failing[position] < 0:
                return None
        return gaussian({9: 15}, 10, rng)(position)

    search, asked = run(over(16, repeats=4), measure)
    assert asked.count(0) == 3
    assert search.times(0) == 2
    assert max(asked.count(place) for place in asked) <= 4


def test_looks_go_into_what_does_not_differ() -> None:
    _, asked = run(over(64).looking(5), gaussian({}, 0, random.Random(0)))
    assert len(set(asked)) == 2 + 5


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 10**12), st.integers(0, 10**9)), max_size=30))
def test_what_is_folded_as_it_comes_is_what_all_measurements_say_together(
    measured: list[tuple[int, int, int]],
) -> None:
    samples, given_by_position = Samples.none(5), dict[int, list[Bytes]]()
    for position, live, overhead in measured:
        value = Bytes(requested_bytes=live, reserved_bytes=live + overhead)
        samples = samples.with_one(position, value)
        given_by_position.setdefault(position, []).append(value)
    whole = Spread.of(given_by_position.values())
    assert samples.spread.freedom == whole.freedom
    assert samples.spread.requested_bytes == pytest.approx(whole.requested_bytes, rel=1e-6, abs=1)
    assert samples.spread.overhead_bytes == pytest.approx(whole.overhead_bytes, rel=1e-6, abs=1)
    positions = np.array(sorted(given_by_position), dtype=np.int64)
    live_means, reserved_means = samples.means(positions)
    means = [mean(given_by_position[position]) for position in positions.tolist()]
    assert live_means.tolist() == [each.requested_bytes for each in means]
    assert reserved_means.tolist() == [each.reserved_bytes for each in means]
