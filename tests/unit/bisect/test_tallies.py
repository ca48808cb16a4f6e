"""What is believed of single states is what Bayes' rule gives, summed over everything that may be true."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oomscope.bisect.search.answer_counts import AnswerCounts
from oomscope.bisect.search.line import Answer
from oomscope.bisect.search.posterior import Prior

PRIOR = Prior()


def exact(counts: list[tuple[int, int]], place: int) -> float:
    """Return the probability that the state at ``place`` is bad, over every choice of which states are."""
    weights = [0.0, 0.0]
    for bad in itertools.product((False, True), repeat=len(counts)):
        false_bad = [n for (_, n), is_bad in zip(counts, bad, strict=True) if not is_bad]
        true_good = [n for (n, _), is_bad in zip(counts, bad, strict=True) if not is_bad]
        false_good = [n for (n, _), is_bad in zip(counts, bad, strict=True) if is_bad]
        true_bad = [n for (_, n), is_bad in zip(counts, bad, strict=True) if is_bad]
        log = PRIOR.log_likelihood(sum(false_bad), sum(true_good)) + PRIOR.log_likelihood(
            sum(false_good), sum(true_bad)
        )
        weights[bad[place]] += math.exp(log)
    return weights[1] / sum(weights)


def tallies_of(counts: list[tuple[int, int]]) -> AnswerCounts:
    tallies = AnswerCounts()
    for state, (good, bad) in enumerate(counts):
        for answer in [Answer.GOOD] * good + [Answer.BAD] * bad:
            tallies = tallies.told(state, answer)
    return tallies


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=5), st.data())
def test_beliefs_are_those_of_the_exact_sum(counts: list[tuple[int, int]], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(counts) - 1))
    tallies = tallies_of(counts)
    believed = tallies.probability(place, Answer.BAD)
    assert believed == pytest.approx(exact(counts, place), abs=0.001)
    assert believed + tallies.probability(place, Answer.GOOD) == pytest.approx(1)


def test_a_state_that_was_not_asked_about_is_as_probably_good_as_bad() -> None:
    assert tallies_of([(3, 0)]).probability("another", Answer.BAD) == pytest.approx(0.5)


def test_what_was_asked_often_teaches_how_far_to_trust_one_answer() -> None:
    alone = tallies_of([(0, 1)]).probability(0, Answer.BAD)
    after_agreement = tallies_of([(0, 1), (0, 9), (9, 0)]).probability(0, Answer.BAD)
    after_contradiction = tallies_of([(0, 1), (4, 9), (9, 4)]).probability(0, Answer.BAD)
    assert after_contradiction < alone < after_agreement


def test_stated_confidence_is_kept() -> None:
    """Of states whose answer is 95 % sure no more than one in twenty is wrong, where every tenth probe is."""
    rng, wrong, settled = random.Random(7), 0, 0
    for _ in range(25):
        tallies = AnswerCounts()
        for state in range(6):
            truth, other = rng.sample([Answer.GOOD, Answer.BAD], 2)
            for _ in range(20):
                tallies = tallies.told(state, other if rng.random() < 0.1 else truth)
                if max(tallies.probability(state, truth), tallies.probability(state, other)) >= 0.95:
                    settled += 1
                    wrong += tallies.probability(state, truth) < 0.5
                    break
    assert settled >= 145
    assert wrong / settled <= 0.05
