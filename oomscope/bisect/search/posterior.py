"""Bisection where an answer may be wrong: pure, one question at a time, like :mod:`oomscope.bisect.search.line`.

Every position may be asked about again. What is believed is a probability for each candidate, with the rates at which
good positions answer bad and bad ones good integrated out, so that contradicting answers teach the rates and the
candidate at once. Asked is the position whose next answer tells most (the expected fall of entropy), until one
candidate is probable enough. Where answers are never wrong these are the questions of plain bisection.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from oomscope.bisect.search.line import Answer, Found, chance_of, runs_of

CREDIBLE = 0.95
"""Share of the belief that an interval of :class:`Rate` holds."""
_LOG_ODDS = np.linspace(-25.0, 25.0, 10_001)
"""Logarithms of the odds of rates. In these a Beta density is smooth and falls to nothing on both sides, also where
that of the rate itself is highest at 0 or 1: sums of it are as good as integrals."""
_LOG_RATE, _LOG_REST = -np.logaddexp(0, -_LOG_ODDS), -np.logaddexp(0, _LOG_ODDS)


@dataclass(frozen=True, kw_only=True)
class Prior:
    """A Beta distribution over a rate of wrong answers.

    By default it is worth seven answers of which one was wrong: probes are mostly right, yet a few contradictions
    outweigh it (``benchmarks/bisect_noise.py`` compares others). ``wrong`` of 0 stands for answers that are never
    wrong.
    """

    wrong: float = 1.0
    right: float = 6.0

    def log_likelihood(self, wrong: int, right: int) -> float:
        """Return the logarithm of the probability of one sequence of so many answers; -inf where it cannot be."""
        if self.wrong == 0:
            return -math.inf if wrong else 0.0
        seen = _log_beta(self.wrong + wrong, self.right + right)
        return seen - _log_beta(self.wrong, self.right)

    def mean(self, wrong: int, right: int) -> float:
        """Return the expected rate after so many answers: the probability that the next one is wrong."""
        return (self.wrong + wrong) / (self.wrong + self.right + wrong + right)


NEVER_WRONG = Prior(wrong=0.0, right=1.0)


@dataclass(frozen=True, kw_only=True)
class Rate:
    """What is believed of a rate: its mean and the central interval that holds ``CREDIBLE`` of the belief."""

    mean: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        """Return JSON values."""
        return asdict(self)


def mixed_rate(prior: Prior, seen: Sequence[tuple[float, int, int]]) -> Rate:
    """Return what is believed of a rate where it is uncertain which answers were wrong.

    Args:
        prior: the belief before any answer.
        seen: how probable each case is, with its numbers of wrong and right answers.
    """
    mean = sum(probability * prior.mean(wrong, right) for probability, wrong, right in seen)
    if prior.wrong == 0:
        return Rate(mean=mean, low=0.0, high=0.0)
    density = np.zeros_like(_LOG_ODDS)
    for probability, wrong, right in seen:
        powers = (prior.wrong + wrong) * _LOG_RATE + (prior.right + right) * _LOG_REST
        density += probability * np.exp(powers - _log_beta(prior.wrong + wrong, prior.right + right))
    below = np.concatenate(([0.0], np.cumsum(density[1:] + density[:-1])))
    tail = (1 - CREDIBLE) / 2
    low, high = (1 / (1 + math.exp(-np.interp(share, below / below[-1], _LOG_ODDS))) for share in (tail, 1 - tail))
    return Rate(mean=mean, low=low, high=high)


def _log_beta(first: float, second: float) -> float:
    return math.lgamma(first) + math.lgamma(second) - math.lgamma(first + second)


ENDS_WRONG: Final = 0.05
"""Prior probability that there is no culprit, and as much that the good end is bad: whoever names ends has mostly seen
both, though perhaps on a bad night."""
LEAST_BITS: Final = 0.005
"""An answer that is expected to tell less is not worth a probe: then the answers are as good as random."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class AnswerCount:
    """The answers at one position."""

    good: int = 0
    bad: int = 0

    @property
    def count(self) -> int:
        """How many there are."""
        return self.good + self.bad

    def with_one(self, answer: Answer) -> AnswerCount:
        """Return the tally with one more answer, good or bad."""
        is_good = answer is Answer.GOOD
        return AnswerCount(good=self.good + is_good, bad=self.bad + (not is_good))


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
        false_good: prior of the rate at which bad positions answer good.
        false_bad: prior of the rate at which good positions answer bad.
        tallies: the answers so far, by position.
        untestable: positions that cannot be asked (again), sorted.
    """

    last: int
    enough: float = 0.95
    repeats: int = 20
    prior: tuple[float, ...] = ()
    false_good: Prior = field(default_factory=Prior)
    false_bad: Prior = field(default_factory=Prior)
    tallies: Mapping[int, AnswerCount] = field(default_factory=dict)
    untestable: tuple[int, ...] = ()

    @classmethod
    def noiseless(cls, last: int) -> PosteriorSearch:
        """Return the search whose answers are never wrong."""
        return cls(last=last, false_good=NEVER_WRONG, false_bad=NEVER_WRONG)

    def times(self, position: int) -> int:
        """Return how many answers there are at ``position``."""
        return self.tallies[position].count if position in self.tallies else 0

    def is_silent(self, position: int) -> bool:
        """Whether ``position`` cannot be tested and never gave an answer."""
        return position in self.untestable and position not in self.tallies

    def told(self, position: int, answer: Answer) -> PosteriorSearch:
        """Return the search that also knows one more answer at ``position``, whether or not it was wanted.

        A position that turns untestable keeps the answers that it gave, and is not asked again.
        """
        if answer is Answer.UNTESTABLE:
            return replace(self, untestable=tuple(sorted({*self.untestable, position})))
        tally = self.tallies.get(position, AnswerCount()).with_one(answer)
        return replace(self, tallies={**self.tallies, position: tally})

    @cached_property
    def wanted(self) -> int | None:
        """The position to ask about next; None when the search is over.

        That is one of those next to the answer if it was never asked, since an answer is shown with what was measured
        before and after it; else the one that tells most, the first of equals.
        """
        if self.is_sure:
            return next((place for place in self._beside if self._may_be_asked(place) and not self.times(place)), None)
        open_ = np.array([self._may_be_asked(position) for position in range(self.last + 1)])
        bits = np.where(open_, self.information, 0.0)
        if not bits.max() >= LEAST_BITS:
            return None
        # Rounded, because splits that are equally even are to be equal.
        return int(np.argmax(np.round(bits * self._chances_to_be_testable, 9)))

    @cached_property
    def probabilities(self) -> Floats:
        """The probability of each candidate from 0 to ``last + 1``; they sum to 1."""
        logs = np.array([self._log_likelihood(place) for place in range(len(self._asked) + 1)])
        weights = self._prior * np.exp(logs - logs.max())[self._stretch]
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
        return tuple(np.flatnonzero(np.cumsum(self.probabilities)[:-1] >= self.enough).tolist())

    @property
    def is_sure(self) -> bool:
        """Whether the leading candidates are probable enough."""
        return self.confidence >= self.enough

    @property
    def found(self) -> Found:
        """The candidates that hold enough of the probability, as positions with an answer before and at their end.

        Nothing is said of the two candidates outside the line: see ``already`` and ``none``.
        """
        first, end = self.leading if self.is_sure else self._credible
        first, end = max(1, first), min(self.last, end)
        asked = [place for place in self._asked if place < first]
        last_good = max(asked, default=0)
        first_bad = min((place for place in self._asked if place >= end), default=self.last)
        suspects = tuple(range(last_good + 1, first_bad + 1))
        return Found(kind="culprit" if len(suspects) == 1 else "suspects", last_good=last_good, suspects=suspects)

    @cached_property
    def information(self) -> Floats:
        """The bits that one more answer at each position is expected to tell of the candidates."""
        when_bad = 1 - self._error_rates(self.false_good, self._bad_ones_wrong)
        when_good = self._error_rates(self.false_bad, self._good_ones_wrong)
        known = self._mixed(_entropy(when_bad), _entropy(when_good))
        return np.maximum(0.0, _entropy(self._mixed(when_bad, when_good)) - known)

    def predicted(self, position: int) -> float:
        """Return the probability that the next answer at ``position`` is bad."""
        when_bad = 1 - self._error_rates(self.false_good, self._bad_ones_wrong)
        when_good = self._error_rates(self.false_bad, self._good_ones_wrong)
        return float(self._mixed(when_bad, when_good)[position])

    @property
    def false_good_rate(self) -> Rate:
        """How often bad positions answer good, as far as that is known."""
        return mixed_rate(self.false_good, self._weighed(self._bad_ones_wrong))

    @property
    def false_bad_rate(self) -> Rate:
        """How often good positions answer bad, as far as that is known."""
        return mixed_rate(self.false_bad, self._weighed(self._good_ones_wrong))

    def _may_be_asked(self, position: int) -> bool:
        return self.times(position) < self.repeats and position not in self.untestable

    @cached_property
    def _asked(self) -> list[int]:
        """The positions with answers, in order. Candidates between the same two of them explain all answers alike."""
        return sorted(self.tallies)

    @cached_property
    def _stretch(self) -> NDArray[np.int64]:
        """For each candidate, how many positions with answers lie before it."""
        return np.searchsorted(np.array(self._asked, dtype=np.int64), np.arange(self.last + 2), side="left")

    @cached_property
    def _good_ones_wrong(self) -> list[tuple[int, int]]:
        """Wrong and right answers of the positions that are good, by stretch."""
        tallies = [self.tallies[place] for place in self._asked]
        return [
            (sum(tally.bad for tally in tallies[:place]), sum(tally.good for tally in tallies[:place]))
            for place in range(len(tallies) + 1)
        ]

    @cached_property
    def _bad_ones_wrong(self) -> list[tuple[int, int]]:
        """Wrong and right answers of the positions that are bad, by stretch."""
        tallies = [self.tallies[place] for place in self._asked]
        return [
            (sum(tally.good for tally in tallies[place:]), sum(tally.bad for tally in tallies[place:]))
            for place in range(len(tallies) + 1)
        ]

    def _log_likelihood(self, stretch: int) -> float:
        good, bad = self._good_ones_wrong[stretch], self._bad_ones_wrong[stretch]
        return self.false_bad.log_likelihood(*good) + self.false_good.log_likelihood(*bad)

    def _error_rates(self, prior: Prior, counts: list[tuple[int, int]]) -> Floats:
        """Return, for each candidate, the probability that the next answer is wrong."""
        return np.array([prior.mean(*count) for count in counts])[self._stretch]

    def _mixed(self, when_bad: Floats, when_good: Floats) -> Floats:
        """Return, for each position, the mean over candidates of what holds if it is bad, or good, under each."""
        bad, good = (np.cumsum(self.probabilities * value) for value in (when_bad, when_good))
        return np.asarray(bad[:-1] + good[-1] - good[:-1], dtype=np.float64)

    def _weighed(self, counts: list[tuple[int, int]]) -> list[tuple[float, int, int]]:
        probabilities = np.bincount(self._stretch, weights=self.probabilities, minlength=len(counts))
        return [(float(probability), *count) for probability, count in zip(probabilities, counts, strict=True)]

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
