"""The search against brute force: the right culprit or the right set, within its promise of probes."""

from __future__ import annotations

import random
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from oomscope.bisect.search.line import Answer, Search, extra_probes
from tests.unit.bisect.search.runs import found_by


def halvings(candidates: int) -> int:
    """ceil(log2(candidates)) by counting."""
    rounds, reach = 0, 1
    while reach < candidates:
        reach, rounds = 2 * reach, rounds + 1
    return rounds


class Line:
    """Positions 0 to ``last`` that turn bad at ``culprit``, some of them untestable; counts what it is asked."""

    def __init__(self, last: int, culprit: int, untestable: frozenset[int] = frozenset()) -> None:
        self.last, self.culprit, self.untestable = last, culprit, untestable
        self.asked: list[int] = []

    def __call__(self, position: int) -> Answer:
        assert 0 < position < self.last, "the ends are known"
        assert position not in self.asked, "nothing is asked twice"
        self.asked.append(position)
        if position in self.untestable:
            return Answer.UNTESTABLE
        return Answer.BAD if position >= self.culprit else Answer.GOOD

    @property
    def suspects(self) -> tuple[int, ...]:
        """What no search can tell apart, found by walking from the culprit both ways."""
        good = next(place for place in range(self.culprit - 1, -1, -1) if place not in self.untestable)
        bad = next(place for place in range(self.culprit, self.last + 1) if place not in self.untestable)
        return tuple(range(good + 1, bad + 1))

    @property
    def met(self) -> int:
        return sum(place in self.untestable for place in self.asked)


@st.composite
def lines(draw: st.DrawFn, largest: int = 300) -> Line:
    last = draw(st.integers(1, largest))
    culprit = draw(st.integers(1, last))
    untestable: set[int] = set()
    if last > 1:
        share = draw(st.sampled_from([0.0, 0.1, 0.5, 0.95]))
        rng = random.Random(draw(st.integers(0, 2**32)))
        untestable |= {place for place in range(1, last) if rng.random() < share}
        for start, length in draw(st.lists(st.tuples(st.integers(1, last - 1), st.integers(1, 60)), max_size=3)):
            untestable |= set(range(start, min(last, start + length)))
    return Line(last, culprit, frozenset(untestable))


@given(lines())
def test_finds_exactly_what_can_be_found_within_its_promise(line: Line) -> None:
    found = found_by(Search.over(line.last), line)
    assert found.suspects == line.suspects
    assert found.is_culprit == (len(line.suspects) == 1)
    assert found.last_good == line.suspects[0] - 1
    assert found.first_bad == line.suspects[-1]
    answered = len(line.asked) - line.met
    assert answered <= halvings(line.last) + extra_probes(line.met)


@given(st.integers(1, 400), st.data())
def test_without_untestable_positions_it_is_plain_bisection(last: int, data: st.DataObject) -> None:
    line = Line(last, data.draw(st.integers(1, last)))
    found_by(Search.over(last), line)
    low, high, plain = 0, last, []
    while high - low > 1:
        middle = low + (high - low) // 2
        plain.append(middle)
        low, high = (low, middle) if middle >= line.culprit else (middle, high)
    assert line.asked == plain


def test_a_line_that_turns_more_than_once_gives_one_of_its_turns() -> None:
    def answer(position: int) -> Answer:
        return Answer.BAD if 20 <= position < 40 or position >= 70 else Answer.GOOD

    found = found_by(Search.over(100), answer)
    assert found.is_culprit
    assert answer(found.first_bad - 1) is Answer.GOOD
    assert answer(found.first_bad) is Answer.BAD


@given(lines(largest=80), st.randoms(use_true_random=False))
def test_answers_may_come_in_any_order(line: Line, rng: random.Random) -> None:
    """A parallel driver brings answers that nobody waits for any more."""
    oracle: Callable[[int], Answer] = Line(line.last, line.culprit, line.untestable)
    search, order = Search.over(line.last), list(range(1, line.last))
    rng.shuffle(order)
    for position in order:
        search = search.with_answer(position, oracle(position))
    assert search.wanted is None
    assert search.found.suspects == line.suspects


def test_a_long_run_of_untestable_positions_is_jumped() -> None:
    """The middle fifth of 1,000 commits does not build: the search gets out of it without walking it."""
    untestable = frozenset(range(400, 601))
    for culprit in (*range(1, 400, 29), *range(602, 1001, 29)):
        line = Line(1000, culprit, untestable)
        assert found_by(Search.over(1000), line).suspects == line.suspects
        if culprit not in range(380, 621):
            assert line.met <= 12
