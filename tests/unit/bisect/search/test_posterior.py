"""The posterior is Bayes' own, the question tells most, and the answer is right as often as it says."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oomscope.bisect.search.line import Answer
from oomscope.bisect.search.posterior import (
    ENDS_WRONG,
    SEEN_RIGHT,
    SEEN_WRONG,
    PosteriorSearch,
    probability_of,
    rate_of,
)

GOOD, BAD, UNTESTABLE = Answer.GOOD, Answer.BAD, Answer.UNTESTABLE

GRID = (np.arange(400) + 0.5) / 400
Answers = list[tuple[int, Answer]]


@st.composite
def told(draw: st.DrawFn) -> tuple[int, Answers]:
    """Return the last position of a small line, and answers along it."""
    last = draw(st.integers(1, 9))
    answer = st.tuples(st.integers(0, last), st.sampled_from([GOOD, BAD]))
    return last, draw(st.lists(answer, max_size=12))


def after(search: PosteriorSearch, answers: Answers) -> PosteriorSearch:
    for position, answer in answers:
        search = search.told(position, answer)
    return search


def by_hand(last: int, answers: Answers) -> list[float]:
    """Integrate over the rate of wrong answers on a grid, for each candidate."""
    density = GRID ** (SEEN_WRONG - 1) * (1 - GRID) ** (SEEN_RIGHT - 1)
    weights = []
    for candidate in range(last + 2):
        weight = density * (ENDS_WRONG if candidate in {0, last + 1} else (1 - 2 * ENDS_WRONG) / last)
        for position, answer in answers:
            weight *= 1 - GRID if (answer is BAD) == (position >= candidate) else GRID
        weights.append(float(weight.sum()))
    return [weight / sum(weights) for weight in weights]


@given(told())
def test_the_posterior_is_what_bayes_rule_says(case: tuple[int, Answers]) -> None:
    last, answers = case
    search = after(PosteriorSearch(last=last), answers)
    assert search.probabilities.sum() == pytest.approx(1)
    assert list(search.probabilities) == pytest.approx(by_hand(last, answers), abs=2e-3)
    assert search.none == search.probabilities[-1]
    assert search.already == search.probabilities[0]


def entropy(search: PosteriorSearch) -> float:
    inside = search.probabilities[search.probabilities > 0]
    return float(-(inside * np.log2(inside)).sum())


@given(told())
def test_the_information_is_the_expected_fall_of_entropy(case: tuple[int, Answers]) -> None:
    last, answers = case
    search = after(PosteriorSearch(last=last), answers)
    for position in range(last + 1):
        bad = search.predicted(position)
        left = bad * entropy(search.told(position, BAD)) + (1 - bad) * entropy(search.told(position, GOOD))
        assert search.information[position] == pytest.approx(entropy(search) - left, abs=1e-9)
    if not search.is_sure and search.wanted is not None:
        assert search.information[search.wanted] == pytest.approx(search.information.max(), abs=1e-8)


def test_a_single_state_is_as_probable_as_its_answers_say() -> None:
    assert probability_of(BAD, (0, 0), 0.1) == 0.5
    assert probability_of(BAD, (0, 1), 0.1) == pytest.approx(0.9)
    assert probability_of(GOOD, (1, 3), 0.1) == pytest.approx(1 - probability_of(BAD, (1, 3), 0.1))
    assert probability_of(BAD, (2, 5), 0.1) == pytest.approx(probability_of(BAD, (0, 3), 0.1))
    assert rate_of(5, 20) > rate_of(0, 0) > rate_of(0, 20)


def run(search: PosteriorSearch, oracle: Callable[[int], Answer]) -> PosteriorSearch:
    for position in (0, search.last):
        search = search.told(position, oracle(position))
    while (position := search.wanted) is not None:  # type: ignore[assignment]
        search = search.told(position, oracle(position))
    return search


def noisy(culprit: int, rng: random.Random, false_good: float, false_bad: float) -> Callable[[int], Answer]:
    def oracle(position: int) -> Answer:
        is_bad = position >= culprit
        is_wrong = rng.random() < (false_good if is_bad else false_bad)
        return BAD if is_bad != is_wrong else GOOD

    return oracle


@pytest.mark.parametrize(("false_good", "false_bad"), [(0.1, 0.1), (0.2, 0.0), (0.0, 0.2)])
def test_it_is_right_as_often_as_it_says(false_good: float, false_bad: float) -> None:
    right = wrong = 0
    for case in range(50):
        rng = random.Random(case)
        culprit = rng.randint(1, 64)
        search = run(PosteriorSearch(last=64), noisy(culprit, rng, false_good, false_bad))
        right += search.is_sure and search.leading == (culprit, culprit)
        wrong += search.is_sure and search.leading != (culprit, culprit)
    assert wrong <= 3
    assert right >= 45


@pytest.mark.parametrize("culprit", [0, 51])
def test_it_admits_that_there_is_no_culprit(culprit: int) -> None:
    rng = random.Random(1)
    sure = 0
    for _ in range(20):
        search = run(PosteriorSearch(last=50), noisy(culprit, rng, 0.05, 0.05))
        sure += search.is_sure and (search.already if culprit == 0 else search.none) >= 0.95
    assert sure >= 19


def test_answers_like_a_coins_end_without_an_answer() -> None:
    rng = random.Random(5)
    searches = [run(PosteriorSearch(last=32), noisy(20, rng, 0.5, 0.5)) for _ in range(8)]
    unsure = [search for search in searches if not search.is_sure]
    assert len(unsure) >= 7
    assert all(search.found.kind == "suspects" and search.confidence < 0.95 for search in unsure)


@settings(max_examples=60)
@given(st.data())
def test_untestable_neighbours_are_suspects_together(data: st.DataObject) -> None:
    last = data.draw(st.integers(2, 30))
    hidden = data.draw(st.sets(st.integers(1, last - 1), max_size=last - 1))
    culprit = data.draw(st.integers(1, last))

    def oracle(position: int) -> Answer:
        return UNTESTABLE if position in hidden else BAD if position >= culprit else GOOD

    found = run(PosteriorSearch(last=last), oracle).found
    testable = [position for position in range(last + 1) if position not in hidden]
    assert found.last_good == max(position for position in testable if position < culprit)
    assert found.first_bad == min(position for position in testable if position >= culprit)


def test_no_position_is_asked_more_often_than_allowed() -> None:
    asked_of: dict[int, int] = {}
    oracle = noisy(7, random.Random(3), 0.4, 0.4)

    def counting(position: int) -> Answer:
        asked_of[position] = asked_of.get(position, 0) + 1
        return oracle(position)

    run(PosteriorSearch(last=16, repeats=3), counting)
    assert max(asked_of.values()) == 3


def test_what_was_never_asked_beside_the_answer_is_asked_before_the_end() -> None:
    """A prior that all but names 5 still has its parent asked: the answer is shown with what was before it."""
    prior = tuple(1.0 if position == 5 else 1e-6 for position in range(1, 11))
    search = run(PosteriorSearch(last=10, prior=prior), lambda position: BAD if position >= 5 else GOOD)
    assert search.leading == (5, 5)
    assert search.times(4) > 0
    assert search.times(5) > 0


def test_a_position_that_turns_untestable_keeps_its_answers() -> None:
    search = after(PosteriorSearch(last=4), [(0, GOOD), (4, BAD), (2, BAD), (2, UNTESTABLE)])
    assert search.times(2) == 1
    assert search.wanted != 2
    assert search.leading in {(1, 1), (2, 2)}, "its answer still tells 2 from 3"
