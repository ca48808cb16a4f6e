"""Wrong answers are found by repeats; the spread and Student's quantiles agree with tables and with statistics."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.bisect.search.line import Answer, Search, SearchFinding
from oomscope.bisect.search.repeats import ProbeSpread, RepeatedSearch, mean, percent, probability_of, rate_of, student
from oomscope.units import Bytes


def sample(*live: int) -> tuple[Bytes, ...]:
    return tuple(Bytes(requested_bytes=value, reserved_bytes=2 * value) for value in live)


@pytest.mark.parametrize(
    ("confidence", "freedom", "quantile"),
    [(0.95, 1, 12.706), (0.95, 2, 4.303), (0.95, 3, 3.182), (0.99, 5, 4.032), (0.999, 8, 5.041), (0.95, 10_000, 1.960)],
)
def test_students_quantiles_are_those_of_the_tables(confidence: float, freedom: int, quantile: float) -> None:
    assert student(confidence, freedom) == pytest.approx(quantile, abs=5e-4)


def test_one_position_has_its_standard_deviation() -> None:
    spread = ProbeSpread.of([sample(10, 14, 19), sample(1000)])
    assert spread.requested_bytes == pytest.approx(statistics.stdev([10, 14, 19]))
    assert spread.overhead_bytes == pytest.approx(spread.requested_bytes)
    assert spread.freedom == 2


def test_positions_are_pooled_whatever_their_levels() -> None:
    spread = ProbeSpread.of([sample(10, 14), sample(1010, 1014), sample(7, 7, 7)])
    assert spread.requested_bytes == pytest.approx((16 / 4) ** 0.5)
    assert spread.freedom == 4


def test_equal_positions_exceed_the_limit_as_rarely_as_promised() -> None:
    rng = random.Random(1)
    exceeded = 0
    for _ in range(2000):
        first, second = (sample(*(round(rng.gauss(10**6, 1000)) for _ in range(3))) for _ in range(2))
        limit = ProbeSpread.of([first, second]).limit(3, 0.9)
        exceeded += abs((mean(first) - mean(second)).requested_bytes) > limit.requested_bytes
    assert 0.08 < exceeded / 2000 < 0.12


GOOD, BAD, UNTESTABLE = Answer.GOOD, Answer.BAD, Answer.UNTESTABLE


def run(
    search: RepeatedSearch, culprit: int, rng: random.Random, false_good: float, false_bad: float
) -> RepeatedSearch:
    """Ask both ends, then what the search wants; answers are wrong at these rates."""
    questions = [0, search.last]
    while (position := questions.pop(0) if questions else search.wanted) is not None:
        is_bad = position >= culprit
        is_wrong = rng.random() < (false_good if is_bad else false_bad)
        search = search.with_answer(position, BAD if is_bad != is_wrong else GOOD)
    return search


@pytest.mark.parametrize(("false_good", "false_bad"), [(0.1, 0.1), (0.15, 0.0), (0.0, 0.15)])
def test_it_is_right_as_often_as_it_says(false_good: float, false_bad: float) -> None:
    right = wrong = 0
    for case in range(100):
        rng = random.Random(case)
        culprit = rng.randint(1, 64)
        found = run(RepeatedSearch(last=64, enough=0.95, repeats=20), culprit, rng, false_good, false_bad)
        is_right = found.conclusion == "found" and found.found == SearchFinding(culprit - 1, culprit)
        right += found.is_sure and is_right
        wrong += found.is_sure and not is_right
    assert wrong <= 5
    assert right >= 92


@pytest.mark.parametrize(("culprit", "conclusion"), [(0, "already bad"), (99, "still good")])
def test_ends_that_are_not_as_they_were_called_are_an_answer(culprit: int, conclusion: str) -> None:
    found = run(RepeatedSearch(last=50, enough=0.95, repeats=20), culprit, random.Random(5), 0.1, 0.1)
    assert (found.conclusion, found.is_sure) == (conclusion, True)


@given(st.integers(1, 200), st.data())
def test_without_noise_it_asks_as_plain_bisection_and_confirms_both_sides(last: int, data: st.DataObject) -> None:
    culprit = data.draw(st.integers(1, last))
    plain, asked = Search.over(last), 2
    while (position := plain.wanted) is not None:
        plain = plain.with_answer(position, BAD if position >= culprit else GOOD)
        asked += 1
    believing = run(RepeatedSearch(last=last), culprit, random.Random(0), 0, 0)
    assert believing.found == plain.found
    assert sum(map(sum, believing.counts.values())) == asked
    sure = run(RepeatedSearch(last=last, enough=0.95, repeats=20), culprit, random.Random(0), 0, 0)
    assert sure.found == plain.found
    assert sure.confidence >= 0.95
    assert sum(map(sum, sure.counts.values())) <= asked + 4


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([GOOD, BAD, UNTESTABLE])), max_size=40))
def test_whatever_is_answered_the_search_ends(answers: list[tuple[int, Answer]]) -> None:
    search = RepeatedSearch(last=9, enough=0.95, repeats=4)
    for position, answer in answers:
        search = search.with_answer(position, answer)
    for answer in [answer for _, answer in answers] + [GOOD] * 60:
        if (position := search.wanted) is None:
            break
        assert search.times(position) < 4
        search = search.with_answer(position, answer)
    assert search.wanted is None
    assert search.found.last_good < search.found.first_bad
    assert 0 <= search.confidence <= 1


def test_a_single_state_is_as_probable_as_its_answers_say() -> None:
    assert probability_of(BAD, (0, 0), 0.1) == 0.5
    assert probability_of(BAD, (0, 1), 0.1) == pytest.approx(0.9)
    assert probability_of(GOOD, (1, 3), 0.1) == pytest.approx(1 - probability_of(BAD, (1, 3), 0.1))
    assert probability_of(BAD, (2, 5), 0.1) == pytest.approx(probability_of(BAD, (0, 3), 0.1))
    assert rate_of(5, 20) > rate_of(0, 0) > rate_of(0, 20)


def test_certainty_is_not_rounded_up() -> None:
    assert (percent(0.99999), percent(0.95)) == ("99.9 %", "95 %")
