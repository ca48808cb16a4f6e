"""Answers and bytes that differ from probe to probe: how often to repeat, how sure to be, and what a step is. Pure.

A line is bisected as if every answer were right. Then the two commits on either side of the change are probed again,
until both are sure enough; an answer that the repeats overturn moves the boundary, and the bisection continues from
there. The culprit is right exactly if these two answers are, whatever was answered elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Final, Literal

from oomscope.bisect.search.line import Answer, Search, SearchFinding
from oomscope.bisect.search.steps import Threshold
from oomscope.units import Bytes

CONFIDENCE: Final = 0.95
REPEATS: Final = 20
SEEN_WRONG: Final = 2
SEEN_RIGHT: Final = 8
"""Right answers assumed before the first, beside ``SEEN_WRONG`` wrong ones (``benchmarks/bisect_noise.py``)."""
MOST_WRONG: Final = 0.3
"""Rate of wrong answers beyond which nothing is concluded."""
_WIDEST = 2**62
"""A number above any difference of bytes."""

Counts = tuple[int, int]
"""Good and bad answers."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """How sure a search has to be, and what it may take.

    Args:
        confidence: probability at which an answer is one.
        repeats: probes of one commit at most. With one, the search is plain bisection.
    """

    confidence: float = CONFIDENCE
    repeats: int = REPEATS

    @property
    def may_repeat(self) -> bool:
        """Whether a commit may be probed more than once at all."""
        return self.repeats > 1


def effective_noise(asked_for: Noise | None, *, may_differ: bool) -> Noise | None:
    """Return the repeats and confidence that apply; None where one probe gives an answer.

    Args:
        asked_for: by the user; None leaves it to what is measured.
        may_differ: whether a probe may answer something else the next time. On a real card others may hold memory, and
            work may come in another order; a run on a virtual card repeats to the byte, unless the program draws from
            the clock.
    """
    if asked_for is None:
        return Noise() if may_differ else None
    return asked_for if asked_for.may_repeat else None


def percent(probability: float) -> str:
    """Return ``probability`` in words; what is short of certain is not rounded up to it."""
    return f"{math.floor(1000 * probability) / 10:g} %"


def rate_of(wrong: float, count: int) -> float:
    """Return the expected rate of wrong answers after ``count`` answers of which ``wrong`` were."""
    return (SEEN_WRONG + wrong) / (SEEN_WRONG + SEEN_RIGHT + count)


def probability_of(answer: Answer, counts: Counts, rate: float) -> float:
    """Return how probable it is that a state is ``answer``, good or bad, after so many good and bad answers.

    Args:
        answer: good or bad.
        counts: of answers.
        rate: share of answers that are wrong.
    """
    good, bad = counts
    lead = good - bad if answer is Answer.GOOD else bad - good
    odds = min(rate, 0.49) / (1 - min(rate, 0.49))
    return 1 / (1 + odds**lead)


@dataclass(frozen=True, kw_only=True)
class RepeatedSearch:
    """The state of a search over positions 0 to ``last``, where 0 is taken for good and ``last`` for bad.

    Args:
        last: the last position.
        enough: probability at which an answer is sure; 0 believes every single answer, as plain bisection does.
        repeats: answers at one position at most.
        fixed: positions that are certain.
        counts: the answers so far, by position.
        untestable: positions that cannot be asked (again).
    """

    last: int
    enough: float = 0.0
    repeats: int = 1
    fixed: frozenset[int] = frozenset()
    counts: Mapping[int, Counts] = field(default_factory=dict)
    untestable: frozenset[int] = frozenset()

    def times(self, position: int) -> int:
        """Return how many answers there are at ``position``."""
        return sum(self.counts.get(position, (0, 0)))

    def with_answer(self, position: int, answer: Answer) -> RepeatedSearch:
        """Return the search that also knows one more answer at ``position``, whether or not it was wanted."""
        if answer is Answer.UNTESTABLE:
            return replace(self, untestable=self.untestable | {position})
        good, bad = self.counts.get(position, (0, 0))
        counted = (good + 1, bad) if answer is Answer.GOOD else (good, bad + 1)
        return replace(self, counts={**self.counts, position: counted})

    @cached_property
    def bisection(self) -> Search:
        """The bisection by the majority of answers at each position, the clearest first."""
        search = Search.over(max(1, self.last))
        for position in sorted(self.counts, key=lambda position: -abs(self._lead(position))):
            if lead := self._lead(position):
                search = search.with_answer(position, Answer.GOOD if lead > 0 else Answer.BAD)
        for position in sorted({*self.counts, *self.untestable}):
            if not self._may_be_asked(position) and not self._lead(position):
                search = search.with_answer(position, Answer.UNTESTABLE)
        return search

    @cached_property
    def conclusion(self) -> Literal["found", "already bad", "still good"]:
        """What the answers say: a change, a good end that is bad already, or a bad end that is good."""
        if 0 not in self.fixed and self._lead(0) < 0:
            return "already bad"
        return "still good" if self.last not in self.fixed and self._lead(self.last) > 0 else "found"

    @property
    def wanted(self) -> int | None:
        """The position to ask about next; None when the search is over."""
        if self.conclusion == "found" and (wanted := self.bisection.wanted) is not None:
            return wanted
        return next((each for each, answer in self._decisive if self._sureness(each, answer) < self._each), None)

    @property
    def found(self) -> SearchFinding:
        """The change; where it is not sure, between the nearest positions that are."""
        if self.is_sure:
            return SearchFinding(self.bisection.good, self.bisection.bad)
        good = [place for place in self.counts if self._probability(place, Answer.GOOD) >= self._each]
        bad = [place for place in self.counts if self._probability(place, Answer.BAD) >= self._each]
        last_good = max((place for place in good if place <= self.bisection.good), default=0)
        return SearchFinding(last_good, min((place for place in bad if place >= self.bisection.bad), default=self.last))

    @property
    def confidence(self) -> float:
        """The probability that the conclusion is right."""
        return math.prod(self._probability(each, answer) for each, answer in self._decisive)

    @property
    def is_sure(self) -> bool:
        """Whether the conclusion is sure enough, and does not rest on answers that mostly contradict."""
        is_decided = all(self._probability(each, answer) >= self._each for each, answer in self._decisive)
        return is_decided and (self.enough == 0 or self._rate <= MOST_WRONG)

    @property
    def _each(self) -> float:
        """How sure each decisive answer has to be: any of the answers given may have led to it."""
        return 1 - (1 - self.enough) / max(2, len(self.counts)) if self.enough else 0.0

    @property
    def _decisive(self) -> list[tuple[int, Answer]]:
        """The positions on which the conclusion rests, with their answers."""
        if self.conclusion == "already bad":
            return [(0, Answer.BAD)]
        if self.conclusion == "still good":
            return [(self.last, Answer.GOOD)]
        sides = ((self.bisection.good, Answer.GOOD), (self.bisection.bad, Answer.BAD))
        return [(place, answer) for place, answer in sides if place not in self.fixed]

    def _lead(self, position: int) -> int:
        good, bad = self.counts.get(position, (0, 0))
        return good - bad

    def _may_be_asked(self, position: int) -> bool:
        return self.times(position) < self.repeats and position not in self.untestable

    def _probability(self, position: int, answer: Answer) -> float:
        return probability_of(answer, self.counts.get(position, (0, 0)), self._rate)

    def _sureness(self, position: int, answer: Answer) -> float:
        """Return how sure ``answer`` is; 1 where no more can be asked."""
        return self._probability(position, answer) if self._may_be_asked(position) else 1.0

    @cached_property
    def _rate(self) -> float:
        """The expected rate of wrong answers: those that contradict the conclusion."""
        wrong = 0
        for position, (good, bad) in self.counts.items():
            if self.conclusion == "already bad" or position >= self.bisection.bad:
                wrong += bad if self.conclusion == "still good" else good
            else:
                wrong += bad if position <= self.bisection.good else min(good, bad)
        return rate_of(wrong, sum(map(sum, self.counts.values())))


@dataclass(frozen=True, kw_only=True)
class ProbeSpread:
    """The standard deviation of one probe, taken to be the same along the line."""

    requested_bytes: float
    overhead_bytes: float
    """Overhead; 0 where reserved bytes are not known."""
    freedom: int
    """Degrees of freedom: probes less positions. With none nothing is known of the spread."""

    @classmethod
    def of(cls, samples: Iterable[Sequence[Bytes]]) -> ProbeSpread:
        """Return the spread pooled over positions, each with its measurements."""
        repeated = [values for values in samples if len(values) > 1]
        freedom = sum(len(values) - 1 for values in repeated)
        requested = _pooled([[value.requested_bytes for value in values] for values in repeated], freedom)
        overhead = _pooled([[value.overhead_bytes or 0 for value in values] for values in repeated], freedom)
        return cls(requested_bytes=requested, overhead_bytes=overhead, freedom=freedom)

    def limit(self, probes: int, confidence: float) -> Threshold:
        """Return what the means of two positions may differ by without a difference being shown (Student's t).

        Args:
            probes: of either position.
            confidence: probability that means of equal positions differ by no more.
        """
        if self.freedom == 0:
            return Threshold.of(_WIDEST)
        width = student(confidence, self.freedom) * math.sqrt(2 / probes)
        return Threshold(
            requested_bytes=int(width * self.requested_bytes), overhead_bytes=int(width * self.overhead_bytes)
        )


def mean(values: Sequence[Bytes]) -> Bytes:
    """Return the mean of at least one measurement, in whole bytes."""
    count, total = len(values), sum(values, start=Bytes())
    return Bytes(
        requested_bytes=round(total.requested_bytes / count),
        reserved_bytes=None if total.reserved_bytes is None else round(total.reserved_bytes / count),
    )


@lru_cache(maxsize=1024)
def student(confidence: float, freedom: int) -> float:
    """Return the t that a Student variable of ``freedom`` degrees stays within, on either side, with ``confidence``."""
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return math.tan(high) * math.sqrt(freedom)


def _within(angle: float, freedom: int) -> float:
    """Return P(abs(t) <= sqrt(freedom) * tan(angle)): Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    sine, cosine = math.sin(angle), math.cos(angle)
    is_odd = freedom % 2 == 1
    term, total = (cosine, 0.0) if is_odd else (1.0, 0.0)
    for power in range(1 if is_odd else 0, freedom - 1, 2):
        total += term
        term *= cosine**2 * (power + 1) / (power + 2)
    return 2 / math.pi * (angle + sine * total) if is_odd else sine * total


def _pooled(groups: Sequence[Sequence[int]], freedom: int) -> float:
    squares = 0.0
    for group in groups:
        centre = sum(group) / len(group)
        squares += sum((value - centre) ** 2 for value in group)
    return math.sqrt(squares / freedom) if freedom else 0.0
