"""Bisection where an answer may be wrong: pure, one question at a time, like :mod:`oomscope.bisect.search.line`.

Every position may be asked about again. Each candidate has a probability (Bayes' rule), in which the rate of wrong
answers is integrated out, so that contradicting answers teach the rate and the candidate at once (the Beta-Bernoulli
model; Gelman et al., *Bayesian Data Analysis*, 2.4). Asked is the position whose answer is expected to tell most, until
one candidate is probable enough. Where answers are never wrong these are about the questions of plain bisection.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray

from oomscope.bisect.search.line import Answer, SearchFinding, chance_of, runs_of

SEEN_WRONG: Final = 2
SEEN_RIGHT: Final = 8
"""Before any answer the rate of wrong ones is taken to be known from so many: probes are mostly right, yet a few
contradictions outweigh it (``benchmarks/bisect_noise.py``)."""
ENDS_WRONG: Final = 0.05
"""Prior probability that there is no culprit, and as much that the good end is bad: whoever names ends has mostly seen
both, though perhaps on a bad night."""
MOST_WRONG: Final = 0.3
"""Expected rate of wrong answers beyond which no candidate is the answer: the probabilities do not hold there."""
LEAST_BITS: Final = 0.005
"""An answer that is expected to tell less is not worth a probe: then answers are as good as random."""

Floats = NDArray[np.float64]
Counts = tuple[int, int]
"""Good and bad answers at one position."""


def rate_of(wrong: float, count: int) -> float:
    """Return the expected rate of wrong answers after ``count`` answers of which ``wrong`` were."""
    return (SEEN_WRONG + wrong) / (SEEN_WRONG + SEEN_RIGHT + count)


def probability_of(answer: Answer, counts: Counts, rate: float) -> float:
    """Return how probable it is that a state is ``answer``, good or bad, after so many good and bad answers.

    Args:
        answer: good or bad.
        counts: of answers.
        rate: share of answers that are wrong, below a half.
    """
    good, bad = counts
    lead = good - bad if answer is Answer.GOOD else bad - good
    return 1 / (1 + (rate / (1 - rate)) ** lead)


@dataclass(frozen=True, kw_only=True)
class PosteriorSearch:
    """The state of a search over positions 0 to ``last``, of which both ends may be asked about as well.

    Candidate h (1 to ``last``) says that h is the first bad position, 0 that all are bad already, ``last + 1`` that
    none is.

    Args:
        last: the last position.
        enough: probability at which a candidate is the answer.
        repeats: answers at one position at most.
        prior: weight of each of the candidates 1 to ``last``, in any scale; all alike where it is empty.
        counts: the answers so far, by position.
        untestable: positions that cannot be asked (again), sorted.
    """

    last: int
    enough: float = 0.95
    repeats: int = 20
    prior: tuple[float, ...] = ()
    counts: Mapping[int, Counts] = field(default_factory=dict)
    untestable: tuple[int, ...] = ()

    def times(self, position: int) -> int:
        """Return how many answers there are at ``position``."""
        return sum(self.counts.get(position, (0, 0)))

    def is_silent(self, position: int) -> bool:
        """Whether ``position`` cannot be tested and never gave an answer."""
        return position in self.untestable and position not in self.counts

    def told(self, position: int, answer: Answer) -> PosteriorSearch:
        """Return the search that also knows one more answer at ``position``, whether or not it was wanted.

        A position that turns untestable keeps the answers that it gave, and is not asked again.
        """
        if answer is Answer.UNTESTABLE:
            return replace(self, untestable=tuple(sorted({*self.untestable, position})))
        good, bad = self.counts.get(position, (0, 0))
        counted = (good + 1, bad) if answer is Answer.GOOD else (good, bad + 1)
        return replace(self, counts={**self.counts, position: counted})

    @cached_property
    def wanted(self) -> int | None:
        """The position to ask about next; None when the search is over.

        That is one of those next to the answer if it was never asked, since an answer is shown with what was measured
        before and after it; else the one that tells most, the first of equals.
        """
        if self.is_sure:
            return next((place for place in self._beside if self._may_be_asked(place) and not self.times(place)), None)
        may = np.array([self._may_be_asked(position) for position in range(self.last + 1)])
        bits = np.where(may, self.information, 0.0)
        if not bits.max() >= LEAST_BITS:
            return None
        # Rounded, because splits that are equally even are to be equal.
        return int(np.argmax(np.round(bits * self._chances_to_be_testable, 9)))

    @cached_property
    def probabilities(self) -> Floats:
        """The probability of each candidate from 0 to ``last + 1``; they sum to 1."""
        logs = [
            math.lgamma(SEEN_WRONG + wrong) + math.lgamma(SEEN_RIGHT + self._count - wrong) for wrong in self._wrong
        ]
        weights = self._prior * np.exp(np.array(logs) - max(logs))
        return np.asarray(weights / weights.sum(), dtype=np.float64)

    @property
    def already(self) -> float:
        """The probability that the good end is bad already."""
        return float(self.probabilities[0])

    @property
    def none(self) -> float:
        """The probability that there is no culprit: the bad end is good."""
        return float(self.probabilities[-1])

    @cached_property
    def leading(self) -> tuple[int, int]:
        """The first and last of those candidates, one or several that cannot be told apart, that are most probable.

        Neighbours cannot be told apart where the position between them is untestable and never gave an answer.
        """
        groups = self._groups
        heaviest = int(np.argmax(np.bincount(groups, weights=self.probabilities)))
        members = np.flatnonzero(groups == heaviest)
        return int(members[0]), int(members[-1])

    @property
    def confidence(self) -> float:
        """The probability of the leading candidates."""
        first, end = self.leading
        return float(min(1.0, self.probabilities[first : end + 1].sum()))

    @property
    def surely_bad(self) -> tuple[int, ...]:
        """The positions whose probability to be bad is enough."""
        return tuple(np.flatnonzero(self._bad >= self.enough).tolist())

    @cached_property
    def is_sure(self) -> bool:
        """Whether the leading candidates are probable enough, and do not rest on answers that mostly contradict."""
        return self.confidence >= self.enough and self._rates[self.leading[0]] <= MOST_WRONG

    @property
    def found(self) -> SearchFinding:
        """The candidates that hold enough of the probability, as positions with an answer before and at their end.

        Nothing is said of the two candidates outside the line: see ``already`` and ``none``.
        """
        first, end = self.leading if self.is_sure else self._credible
        first, end = max(1, first), min(self.last, end)
        last_good = max((place for place in self.counts if place < first), default=0)
        first_bad = min((place for place in self.counts if place >= end), default=self.last)
        return SearchFinding.between(last_good, first_bad)

    @cached_property
    def information(self) -> Floats:
        """The bits that one more answer at each position is expected to tell of the candidates."""
        known = float((self.probabilities * _entropy(self._rates)).sum())
        return np.maximum(0.0, _entropy(self._answers_bad) - known)

    def predicted(self, position: int) -> float:
        """Return the probability that the next answer at ``position`` is bad."""
        return float(self._answers_bad[position])

    def _may_be_asked(self, position: int) -> bool:
        return self.times(position) < self.repeats and position not in self.untestable

    @cached_property
    def _bad(self) -> Floats:
        """The probability of each position to be bad."""
        return np.asarray(np.cumsum(self.probabilities)[:-1], dtype=np.float64)

    @property
    def _answers_bad(self) -> Floats:
        """The probability that the next answer at each position is bad."""
        right = np.cumsum(self.probabilities * (1 - self._rates))[:-1]
        wrong = np.cumsum(self.probabilities * self._rates)
        return np.asarray(right + wrong[-1] - wrong[:-1], dtype=np.float64)

    @property
    def _count(self) -> int:
        """All answers."""
        return sum(map(sum, self.counts.values()))

    @cached_property
    def _wrong(self) -> list[int]:
        """How many of the answers are wrong under each candidate."""
        change = [0] * (self.last + 1)
        for position, (good, bad) in self.counts.items():
            change[position] = bad - good
        return list(accumulate(change, initial=sum(good for good, _ in self.counts.values())))

    @cached_property
    def _rates(self) -> Floats:
        """The probability that the next answer is wrong, under each candidate."""
        return np.array([rate_of(wrong, self._count) for wrong in self._wrong])

    @cached_property
    def _prior(self) -> Floats:
        inside = np.array(self.prior) if self.prior else np.ones(self.last)
        if self.last == 0:
            return np.array([0.5, 0.5])
        share = (1 - 2 * ENDS_WRONG) / inside.sum()
        return np.concatenate(([ENDS_WRONG], inside * share, [ENDS_WRONG]))

    @cached_property
    def _silent(self) -> list[int]:
        """The untestable positions that never gave an answer."""
        return [position for position in self.untestable if self.is_silent(position)]

    @cached_property
    def _groups(self) -> NDArray[np.int64]:
        """The candidates' groups, numbered along the line; those of one group cannot be told apart."""
        begins = np.ones(self.last + 2, dtype=np.int64)
        begins[0] = 0
        begins[[position + 1 for position in self._silent]] = 0
        return np.cumsum(begins)

    @property
    def _beside(self) -> tuple[int, ...]:
        """The positions that the leading candidates lie between."""
        first, end = self.leading
        return tuple(place for place in (first - 1, end) if 0 <= place <= self.last)

    @property
    def _credible(self) -> tuple[int, int]:
        """The first and last of the fewest candidates inside the line that hold enough of the probability."""
        inside = self.probabilities[1:-1]
        order = np.argsort(-inside, kind="stable")
        enough = int(np.searchsorted(np.cumsum(inside[order]), self.enough * inside.sum())) + 1
        return int(order[:enough].min()) + 1, int(order[:enough].max()) + 1

    @cached_property
    def _chances_to_be_testable(self) -> Floats:
        if not self._silent:
            return np.ones(self.last + 1)
        runs = runs_of(self._silent)
        hidden = set(self.untestable)
        return np.array([0.0 if place in hidden else chance_of(place, runs) for place in range(self.last + 1)])


def _entropy(probability: Floats) -> Floats:
    """Return the bits of a coin that falls on one side with ``probability``."""
    inside = np.clip(probability, 1e-300, 1.0)
    outside = np.clip(1 - probability, 1e-300, 1.0)
    return np.asarray(-(inside * np.log2(inside) + outside * np.log2(outside)), dtype=np.float64)
