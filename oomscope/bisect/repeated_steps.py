"""Finds every step of bytes along a line whose measurements are not the same each time: pure, one question at a time.

It splits ranges as :class:`~oomscope.bisect.step_search.StepSearch` does, but two ends differ only where their means
stand clear of the measured spread. The ends of the line are measured several times first, so that there is a spread.
Then a position is measured again where that can decide something: whether two neighbours differ, whether a step
found is one, whether a position that stands out from both its sides does.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from oomscope.bisect.measured import Bytes
from oomscope.bisect.search import Answer, Search
from oomscope.bisect.spread import Spread, mean
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
        samples: what was measured so far, by position.
        searches: the ranges between measured positions, in order.
    """

    last: int
    threshold: Threshold
    confidence: float
    repeats: int
    looks: int = 0
    samples: Mapping[int, tuple[Bytes, ...]] = field(default_factory=dict)
    searches: tuple[Search, ...]
    closed: frozenset[int] = frozenset()
    """Positions that could not be measured again."""

    @classmethod
    def over(cls, last: int, threshold: Threshold, confidence: float, repeats: int) -> RepeatedStepSearch:
        """Return the search among positions 0 to ``last``, whose ends are measured first.

        Raises:
            ValueError: there is no candidate.
        """
        searches = (Search.over(last),)
        return cls(last=last, threshold=threshold, confidence=confidence, repeats=repeats, searches=searches)

    def looking(self, looks: int) -> RepeatedStepSearch:
        """Return the search that may ask about ``looks`` positions inside ranges whose ends do not differ."""
        return replace(self, looks=looks)

    @cached_property
    def wanted(self) -> int | None:
        """The position to measure next, perhaps not for the first time; None when the search is over."""
        if self.again:
            return self.again[0]
        if splitting := self.splitting:
            return splitting[0].wanted
        widest = max(self.searches, key=lambda search: len(search.open))
        return widest.wanted if self.looks else None

    @cached_property
    def splitting(self) -> tuple[Search, ...]:
        """The searches of the ranges that are going to be split, the one that differs most first."""
        searches = [search for search in self.searches if search.open and self._is_clear(search)]
        searches.sort(key=lambda search: _weight(self._delta(search)), reverse=True)
        return tuple(searches)

    @cached_property
    def again(self) -> tuple[int, ...]:
        """The positions to measure again, those first on which most rests."""
        return tuple(dict.fromkeys(self._again()))

    def times(self, position: int) -> int:
        """Return how often ``position`` was measured."""
        return len(self.samples.get(position, ()))

    def told(self, position: int, measured: Bytes | None) -> RepeatedStepSearch:
        """Return the search that also knows one more measurement at ``position`` (None: it could not be made)."""
        if measured is None and self.times(position):
            return replace(self, closed=self.closed | {position})
        place = bisect_left(self.searches, position, key=lambda search: search.bad)
        search = self.searches[place]
        samples = self.samples if measured is None else {**self.samples, position: self._with(position, measured)}
        if position not in search.open:
            return replace(self, samples=samples)
        parts = [search.told(position, Answer.UNTESTABLE)]
        if measured is not None:
            parts = [search.told(position, Answer.BAD), search.told(position, Answer.GOOD)]
        looks = self.looks if self._is_clear(search) else max(0, self.looks - 1)
        searches = (*self.searches[:place], *parts, *self.searches[place + 1 :])
        return replace(self, samples=samples, searches=searches, looks=looks)

    @property
    def steps(self) -> tuple[Step, ...]:
        """The ranges whose ends differ, in order, between means."""
        return tuple(self._step(search) for search in self.searches if self._is_clear(search))

    @property
    def unseen(self) -> tuple[Step, ...]:
        """The other ranges that hold positions which may yet be measured."""
        return tuple(self._step(search) for search in self.searches if search.open and not self._is_clear(search))

    @cached_property
    def spread(self) -> Spread:
        """The spread of one measurement."""
        return Spread.of(self.samples.values())

    def _with(self, position: int, measured: Bytes) -> tuple[Bytes, ...]:
        return (*self.samples.get(position, ()), measured)

    def _again(self) -> Iterator[int]:
        """Yield the positions to measure again, those first on which most rests."""
        for end in (0, self.last):
            if self.times(end) < ENDS_MEASURED and self._may_repeat(end):
                yield end
        for before, after in pairwise(self.searches):
            if self.times(before.bad) < CONFIRMED and self._may_repeat(before.bad) and self._stands_out(before, after):
                yield before.bad
        for search in self.searches:
            ends = [end for end in (search.good, search.bad) if self._may_repeat(end)]
            fewest = min(ends, key=self.times, default=None)
            if fewest is None:
                continue
            is_unconfirmed = not search.open and self._is_clear(search) and self.times(fewest) < CONFIRMED
            if is_unconfirmed or self._is_undecided(search):
                yield fewest

    def _may_repeat(self, position: int) -> bool:
        return self.times(position) < self.repeats and position not in self.closed

    def _stands_out(self, before: Search, after: Search) -> bool:
        """Whether the position between two ranges differs from both their other ends, in opposite directions."""
        up, down = self._delta(before), self._delta(after)
        opposite = up.live_bytes * down.live_bytes < 0 or up.overhead_bytes * down.overhead_bytes < 0
        return opposite and self._is_clear(before) and self._is_clear(after)

    def _is_clear(self, search: Search) -> bool:
        """Whether the ends of a range differ."""
        return self._exceeds(search, (self.times(search.good), self.times(search.bad)))

    def _is_undecided(self, search: Search) -> bool:
        """Whether the ends of a range do not differ clearly now, but would after all the repeats that are left."""
        return not self._is_clear(search) and self._exceeds(search, (self.repeats, self.repeats))

    def _exceeds(self, search: Search, probes: tuple[int, int]) -> bool:
        if not self.times(search.good) or not self.times(search.bad):
            return False
        delta = self._delta(search)
        return self.threshold.raised_to(self._limit(probes)).is_exceeded_by(delta)

    def _limit(self, probes: tuple[int, int]) -> Threshold:
        """Return what the spread allows for, the error shared out among the comparisons that a branch takes."""
        comparisons = 2 * math.ceil(math.log2(self.last + 1)) + 1
        return self.spread.limit(probes, 1 - (1 - self.confidence) / comparisons)

    def _delta(self, search: Search) -> Bytes:
        return self._means[search.bad] - self._means[search.good]

    def _step(self, search: Search) -> Step:
        return Step(after=search.good, at=search.bad, delta=self._delta(search))

    @cached_property
    def _means(self) -> Mapping[int, Bytes]:
        return {position: mean(values) for position, values in self.samples.items()}


def _weight(delta: Bytes) -> int:
    return max(abs(delta.live_bytes), abs(delta.overhead_bytes))
