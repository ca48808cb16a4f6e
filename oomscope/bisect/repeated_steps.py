"""Finds every step of bytes along a line whose measurements are not the same each time: pure, one question at a time.

It splits ranges as :class:`~oomscope.bisect.step_search.StepSearch` does, but two ends differ only where their means
stand clear of the measured spread. The ends of the line are measured several times first, so that there is a spread.
Then a position is measured again where that can decide something: whether two neighbours differ, whether a step
found is one, whether a position that stands out from both its sides does.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from oomscope.bisect.gaps import Gaps
from oomscope.bisect.measured import Bytes
from oomscope.bisect.samples import Samples
from oomscope.bisect.search import Answer, Search
from oomscope.bisect.spread import Spread
from oomscope.bisect.steps import Step, Threshold

ENDS_MEASURED = 3
"""Measurements of either end before anything else."""
CONFIRMED = 2
"""Measurements on either side of a step before it is one."""


@dataclass(frozen=True, kw_only=True)
class RepeatedStepSearch:
    """The state of a search for steps between positions 0 and ``last``.

    Args:
        last: the last position.
        threshold: what a range's ends differ by at most to be left alone, however clear the difference.
        confidence: probability that no comparison along a branch of the search takes noise for a step.
        repeats: measurements of one position at most.
        looks: how many positions may yet be asked about inside ranges that are left alone.
        samples: what was measured so far.
        searches: the ranges between measured positions, in order.
    """

    last: int
    threshold: Threshold
    confidence: float
    repeats: int
    looks: int = 0
    samples: Samples
    searches: tuple[Search, ...]
    left: NDArray[np.int64]
    """How many positions of each range may yet be measured for the first time."""
    closed: frozenset[int] = frozenset()
    """Positions that could not be measured again."""

    @classmethod
    def over(cls, last: int, threshold: Threshold, confidence: float, repeats: int) -> RepeatedStepSearch:
        """Return the search among positions 0 to ``last``, whose ends are measured first.

        Raises:
            ValueError: there is no candidate.
        """
        return cls(
            last=last,
            threshold=threshold,
            confidence=confidence,
            repeats=repeats,
            samples=Samples.none(last + 1),
            searches=(Search.over(last),),
            left=np.array([last - 1]),
        )

    def looking(self, looks: int) -> RepeatedStepSearch:
        """Return the search that may ask about ``looks`` positions inside ranges whose ends do not differ."""
        return replace(self, looks=looks)

    @cached_property
    def wanted(self) -> int | None:
        """The position to measure next, perhaps not for the first time; None when the search is over."""
        if (again := next(self._again(), None)) is not None:
            return again
        if splitting := self.splitting:
            return splitting[0].wanted
        return self.searches[int(np.argmax(self.left))].wanted if self.looks else None

    @cached_property
    def splitting(self) -> tuple[Search, ...]:
        """The searches of the ranges that are going to be split, the one that differs most first."""
        places = np.flatnonzero((self.left > 0) & self._is_clear)
        order = np.argsort(-self._gaps.weights[places], kind="stable")
        return tuple(self.searches[place] for place in places[order].tolist())

    @cached_property
    def again(self) -> tuple[int, ...]:
        """The positions to measure again, those first on which most rests."""
        return tuple(dict.fromkeys(self._again()))

    def times(self, position: int) -> int:
        """Return how often ``position`` was measured."""
        return int(self.samples.counts[position])

    def told(self, position: int, measured: Bytes | None) -> RepeatedStepSearch:
        """Return the search that also knows one more measurement at ``position`` (None: it could not be made)."""
        if measured is None and self.times(position):
            return replace(self, closed=self.closed | {position})
        place = bisect_left(self.searches, position, key=lambda search: search.bad)
        search = self.searches[place]
        samples = self.samples if measured is None else self.samples.with_one(position, measured)
        if position not in search.open:
            return replace(self, samples=samples)
        parts = [search.told(position, Answer.UNTESTABLE)]
        if measured is not None:
            parts = [search.told(position, Answer.BAD), search.told(position, Answer.GOOD)]
        looks = self.looks if self._is_clear[place] else max(0, self.looks - 1)
        searches = (*self.searches[:place], *parts, *self.searches[place + 1 :])
        left = np.concatenate((self.left[:place], [len(part.open) for part in parts], self.left[place + 1 :]))
        return replace(self, samples=samples, searches=searches, left=left, looks=looks)

    @property
    def steps(self) -> tuple[Step, ...]:
        """The ranges whose ends differ, in order, between means."""
        return self._steps(self._is_clear)

    @property
    def unseen(self) -> tuple[Step, ...]:
        """The other ranges that hold positions which may yet be measured."""
        return self._steps((self.left > 0) & ~self._is_clear)

    @property
    def spread(self) -> Spread:
        """The spread of one measurement."""
        return self.samples.spread

    def _again(self) -> Iterator[int]:
        """Yield the positions to measure again, those first on which most rests."""
        for end in (0, self.last):
            if self.times(end) < ENDS_MEASURED and self._may_repeat[end]:
                yield end
        counts, gaps = self.samples.counts, self._gaps
        between = gaps.after[:-1]
        stands_out = gaps.turn_back & self._is_clear[:-1] & self._is_clear[1:]
        yield from between[stands_out & (counts[between] < CONFIRMED) & self._may_repeat[between]].tolist()
        fewest = self._fewest
        is_unconfirmed = (self.left == 0) & self._is_clear & (counts[fewest] < CONFIRMED)
        yield from fewest[(is_unconfirmed | self._is_undecided) & self._may_repeat[fewest]].tolist()

    @cached_property
    def _may_repeat(self) -> NDArray[np.bool_]:
        """Whether each position may be measured again."""
        may = self.samples.counts < self.repeats
        may[list(self.closed)] = False
        return may

    @cached_property
    def _fewest(self) -> NDArray[np.int64]:
        """Of the ends of each range the one that was measured less often, among those that may be measured again."""
        counts = np.where(self._may_repeat, self.samples.counts, self.repeats + 1)
        before, after = self._gaps.before, self._gaps.after
        return np.where(counts[after] < counts[before], after, before)

    @cached_property
    def _gaps(self) -> Gaps:
        """The ranges, and what their ends differ by."""
        return Gaps.of(self.samples, self.last)

    @cached_property
    def _is_clear(self) -> NDArray[np.bool_]:
        """Whether the ends of each range differ."""
        counts = np.maximum(self.samples.counts, 1)
        return self._exceed(np.sqrt(1 / counts[self._gaps.before] + 1 / counts[self._gaps.after]))

    @cached_property
    def _is_undecided(self) -> NDArray[np.bool_]:
        """Whether the ends of each range do not differ clearly now, but would after all the repeats that are left."""
        return ~self._is_clear & self._exceed(np.full(len(self.searches), math.sqrt(2 / self.repeats)))

    def _exceed(self, factors: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return whether each range's ends, if they were measured, differ by more than the threshold and the spread.

        Args:
            factors: what the mean of either end adds to the spread of a difference: the root of 1/n + 1/m.
        """
        comparisons = 2 * math.ceil(math.log2(self.last + 1)) + 1
        limit = self.spread.limits(factors, 1 - (1 - self.confidence) / comparisons)
        return self._gaps.are_measured & self._gaps.exceed(self.threshold, limit)

    def _steps(self, chosen: NDArray[np.bool_]) -> tuple[Step, ...]:
        return tuple(self._gaps.step(place) for place in np.flatnonzero(chosen).tolist())
