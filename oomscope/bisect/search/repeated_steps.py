"""Finds every step of bytes along a line whose measurements are not the same each time: pure, one question at a time.

It splits ranges as :class:`~oomscope.bisect.search.steps.StepSearch` does, but two ends differ only where their means
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

from oomscope.bisect.search.line import Answer, Search
from oomscope.bisect.search.measured import Bytes
from oomscope.bisect.search.spread import Spread
from oomscope.bisect.search.steps import Step, Threshold

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


Flags = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Gaps:
    """Columns with a row for each range, in order; the first begins at 0 and the last ends at the last position."""

    before: Integers
    after: Integers
    """The positions at either end."""
    live: Integers
    """Change of requested bytes from one end to the other."""
    overhead: Integers
    """0 throughout where reserved bytes are not known."""
    is_overhead_known: bool
    are_measured: Flags
    """Whether both ends were."""

    @classmethod
    def of(cls, samples: Samples, last: int) -> Gaps:
        """Return the ranges between the measured ones of the positions 0 to ``last``, both of which count as such."""
        is_end = samples.counts > 0
        is_end[[0, last]] = True
        ends = np.flatnonzero(is_end)
        live, reserved = samples.means(ends)
        is_measured = samples.counts[ends] > 0
        return cls(
            before=ends[:-1],
            after=ends[1:],
            live=np.diff(live),
            overhead=np.diff(reserved - live),
            is_overhead_known=samples.is_reserved_known,
            are_measured=is_measured[:-1] & is_measured[1:],
        )

    @cached_property
    def weights(self) -> Integers:
        """The larger change of either kind, without its sign."""
        return np.maximum(abs(self.live), abs(self.overhead))

    @property
    def turn_back(self) -> Flags:
        """Whether each range but the last changes either kind in the direction opposite to the next one's."""
        signs = np.sign(self.live), np.sign(self.overhead)
        return np.asarray(np.any([sign[:-1] * sign[1:] < 0 for sign in signs], axis=0))

    def exceed(self, threshold: Threshold, limits: tuple[Integers, Integers]) -> Flags:
        """Return whether each changes requested bytes or overhead by more than ``threshold`` and than its own limit.

        Args:
            threshold: for all.
            limits: of requested bytes and of overhead, a row for each range.
        """
        live, overhead = limits
        return np.asarray(
            (abs(self.live) > np.maximum(threshold.requested_bytes, live))
            | (abs(self.overhead) > np.maximum(threshold.overhead_bytes, overhead))
        )

    def step(self, place: int) -> Step:
        """Return one range as a step."""
        live, overhead = int(self.live[place]), int(self.overhead[place])
        delta = Bytes(requested_bytes=live, reserved_bytes=live + overhead if self.is_overhead_known else None)
        return Step(after=int(self.before[place]), at=int(self.after[place]), delta=delta)


Integers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Columns with a row for each position."""

    counts: Integers
    """Measurements."""
    live: Integers
    """Sum of their requested bytes."""
    reserved: Integers
    """Sum of their reserved bytes; those of one that does not know them count as its live ones."""
    is_reserved_known: bool = True
    """Whether all of them knew them."""
    live_squares: float = 0.0
    """Squared distances of requested bytes from the means of their positions, summed over all."""
    overhead_squares: float = 0.0
    freedom: int = 0
    """Measurements less positions that were measured."""

    @classmethod
    def none(cls, positions: int) -> Samples:
        """Return no measurement of so many positions."""
        empty = np.zeros(positions, dtype=np.int64)
        return cls(counts=empty, live=empty, reserved=empty)

    def with_one(self, position: int, measured: Bytes) -> Samples:
        """Return these and one more."""
        count, live_before, reserved_before = (
            int(column[position]) for column in (self.counts, self.live, self.reserved)
        )
        share, overhead = count / (count + 1), measured.overhead_bytes or 0
        live_beyond = _distance(measured.requested_bytes, live_before, count)
        overhead_beyond = _distance(overhead, reserved_before - live_before, count)
        return replace(
            self,
            counts=_raised(self.counts, position, 1),
            live=_raised(self.live, position, measured.requested_bytes),
            reserved=_raised(self.reserved, position, measured.requested_bytes + overhead),
            is_reserved_known=self.is_reserved_known and measured.reserved_bytes is not None,
            live_squares=self.live_squares + share * live_beyond**2,
            overhead_squares=self.overhead_squares + share * overhead_beyond**2,
            freedom=self.freedom + (count > 0),
        )

    def means(self, positions: Integers) -> tuple[Integers, Integers]:
        """Return the mean live and reserved bytes at ``positions``, in whole bytes; 0 where nothing was measured."""
        counts = np.maximum(self.counts[positions], 1)
        live, reserved = (np.rint(sums[positions] / counts).astype(np.int64) for sums in (self.live, self.reserved))
        return live, reserved

    @property
    def spread(self) -> Spread:
        """The spread of one measurement, pooled over all positions."""
        live, overhead = (
            float(np.sqrt(squares / self.freedom)) if self.freedom else 0.0
            for squares in (self.live_squares, self.overhead_squares)
        )
        return Spread(requested_bytes=live, overhead_bytes=overhead, freedom=self.freedom)


def _raised(column: Integers, position: int, by: int) -> Integers:
    raised = column.copy()
    raised[position] += by
    return raised


def _distance(value: int, total: int, count: int) -> float:
    return value - total / count if count else 0.0
