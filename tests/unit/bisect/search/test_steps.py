"""The search for steps against brute force: exact where splitting sees, honest elsewhere, within its promise."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.bisect.search.line import extra_probes
from oomscope.bisect.search.steps import ByteStep, StepSearch, Threshold
from oomscope.units import Bytes, MiB
from tests.unit.bisect.search.runs import run

NOTHING = Threshold(requested_bytes=0, overhead_bytes=0)


def sizes(live: int, overhead: int = 0) -> Bytes:
    return Bytes(requested_bytes=live, reserved_bytes=live + overhead)


class Line:
    """Bytes along a line, None where it cannot be tested; counts what it is asked."""

    def __init__(self, values: Sequence[Bytes | None]) -> None:
        self.values = values
        self.asked: list[int] = []

    def __call__(self, position: int) -> Bytes | None:
        assert 0 < position < len(self.values) - 1, "the ends are known"
        assert position not in self.asked, "nothing is asked twice"
        self.asked.append(position)
        return self.values[position]

    def search(self, threshold: Threshold = NOTHING) -> StepSearch:
        first, last = self.values[0], self.values[-1]
        assert first is not None
        assert last is not None
        return StepSearch.over(len(self.values) - 1, first, last, threshold)

    @property
    def all_steps(self) -> tuple[ByteStep, ...]:
        """Every change between neighbours that can be tested, by walking the line."""
        testable = [(place, value) for place, value in enumerate(self.values) if value is not None]
        changes = (
            ByteStep(after=before, at=at, delta=new - old)
            for (before, old), (at, new) in pairwise(testable)
            if new != old
        )
        return tuple(changes)

    @property
    def met(self) -> int:
        return sum(self.values[place] is None for place in self.asked)


@st.composite
def lines(draw: st.DrawFn, largest: int = 200) -> Line:
    last = draw(st.integers(1, largest))
    rng = random.Random(draw(st.integers(0, 2**32)))
    deltas = {draw(st.integers(1, last)): draw(st.integers(-3, 3)) for _ in range(draw(st.integers(0, 6)))}
    values: list[Bytes | None] = [sizes(100)]
    live, overhead = 100, 0
    for place in range(1, last + 1):
        live += deltas.get(place, 0)
        overhead += deltas.get(place, 0) if rng.random() < 0.3 else 0
        values.append(sizes(live, overhead))
    share = draw(st.sampled_from([0.0, 0.15, 0.5, 0.95]))
    return Line([None if 0 < place < last and rng.random() < share else value for place, value in enumerate(values)])


def covers(stretches: Sequence[ByteStep], step: ByteStep) -> bool:
    return any(stretch.after <= step.after and step.at <= stretch.at for stretch in stretches)


@given(lines())
def test_what_is_found_is_exact_and_what_is_not_lies_between_equal_ends(line: Line) -> None:
    found = run(line.search(), line)
    assert set(found.steps) <= set(line.all_steps)
    hidden = [step for step in line.all_steps if step not in found.steps]
    assert all(covers(found.unseen, step) for step in hidden)
    assert all(stretch.delta == Bytes() for stretch in found.unseen)
    met = line.met
    promised = len(found.steps) * (math.ceil(math.log2(len(line.values) - 1)) + extra_probes(met))
    assert len(line.asked) - met <= promised


@given(lines(), st.integers(0, 3), st.integers(0, 3))
def test_rows_sum_to_the_difference_of_the_ends(line: Line, live: int, overhead: int) -> None:
    threshold = Threshold(requested_bytes=live, overhead_bytes=overhead)
    found = run(line.search(threshold), line)
    rows = [range_.step for range_ in found.ranges]
    assert [row.after for row in rows] == [0, *(row.at for row in rows[:-1])]
    first, last = line.values[0], line.values[-1]
    assert first is not None
    assert last is not None
    assert sum((row.delta for row in rows), start=Bytes()) == last - first
    assert [row for row in rows if threshold.is_exceeded_by(row.delta)] == list(found.steps)
    assert not set(found.unseen) & set(found.steps)


@given(lines(largest=60), st.randoms(use_true_random=False))
def test_answers_may_come_in_any_order(line: Line, rng: random.Random) -> None:
    search, order = line.search(), list(range(1, len(line.values) - 1))
    rng.shuffle(order)
    for position in order:
        search = search.with_answer(position, line(position))
        assert search.with_answer(position, sizes(7)) == search, "what is known stays"
    assert search.wanted is None
    assert search.steps == line.all_steps


def random_line(case: int) -> Line:
    """A thousand commits: eight steps, up to three of them reverted later, 15 % untestable; in MiB."""
    rng = random.Random(case)
    deltas = {place: sizes(rng.choice([-3, 5, 9, 30]), rng.choice([0, 40])) for place in rng.sample(range(1, 1001), 8)}
    for place in rng.sample(sorted(deltas), rng.randint(0, 3)):
        deltas.setdefault(min(1000, place + rng.choice([1, 3, 40, 400])), Bytes() - deltas[place])
    values = list(accumulate((deltas.get(place, Bytes()) for place in range(1, 1001)), initial=sizes(1000)))
    untestable = set(rng.sample(range(1, 1000), 150))
    return Line([None if place in untestable else value for place, value in enumerate(values)])


@pytest.mark.parametrize("case", range(20))
def test_a_thousand_commits_with_steps_reverts_and_untestable_ones(case: int) -> None:
    line = random_line(case)
    found = run(line.search(), line)
    visible = [step for step in line.all_steps if not covers(found.unseen, step)]
    assert list(found.steps) == visible
    assert all(stretch.delta == Bytes() for stretch in found.unseen)
    bound = 2 * len(found.steps) * math.log2(1000) + 2
    assert len(line.asked) + 2 - line.met < bound or not found.steps


def test_a_step_and_its_revert_are_seen_only_by_looking() -> None:
    values: list[Bytes | None] = [sizes(130 if 60 <= place < 70 else 100) for place in range(101)]
    blind = Line(values)
    found = run(blind.search(), blind)
    assert (found.steps, blind.asked) == ((), [])
    assert found.unseen == (ByteStep(after=0, at=100, delta=Bytes()),)
    for looks in (1, 5):
        few = Line(values)
        assert run(few.search().looking(looks), few).steps == ()
        assert len(few.asked) == looks
    many = Line(values)
    found = run(many.search().looking(15), many)
    assert [(step.at, step.delta.requested_bytes) for step in found.steps] == [(60, 30), (70, -30)]
    assert len(many.asked) <= 15 + 2 * 4, "a look that hits is followed by two bisections"


def test_overhead_counts_from_more_than_a_segment_on() -> None:
    threshold = Threshold()
    assert not threshold.is_exceeded_by(sizes(0, 20 * MiB))
    assert threshold.is_exceeded_by(sizes(0, -20 * MiB - 1))
    assert threshold.is_exceeded_by(sizes(1))
    assert not Threshold.of(MiB).is_exceeded_by(sizes(MiB, -MiB))
