"""Steps of bytes along a line: pure. Ranges whose ends differ are split until every visible step is found.

A step between neighbours is exact; one over several commits says where to look. All of them sum to the difference of
the two ends. A range whose ends do not differ is left alone: a step and its revert inside cannot be seen from its
ends. A number of looks buys probes inside such ranges.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

from oomscope.allocator.engine.constants import LARGE_SEGMENT_DEFAULT
from oomscope.bisect.search.line import Answer, Search
from oomscope.units import Bytes


@dataclass(frozen=True, kw_only=True)
class ByteStep:
    """What changed between two measured positions with none measured between them."""

    after: int
    """The measured position before the step."""
    at: int
    """The measured position that closes it."""
    delta: Bytes


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """The largest differences of bytes that are not looked into.

    Requested bytes of a run on a virtual card repeat to the byte. Overhead comes in whole segments, and a change of
    order alone may move one: by default it counts from more than one large segment on (20 MiB, PyTorch's
    ``kLargeBuffer``).
    """

    requested_bytes: int = 0
    overhead_bytes: int = LARGE_SEGMENT_DEFAULT

    @classmethod
    def of(cls, size: int) -> Threshold:
        """Return the threshold of ``size`` for both."""
        return cls(requested_bytes=size, overhead_bytes=size)

    def raised_to(self, other: Threshold) -> Threshold:
        """Return the larger of both, for requested bytes and overhead each."""
        return Threshold(
            requested_bytes=max(self.requested_bytes, other.requested_bytes),
            overhead_bytes=max(self.overhead_bytes, other.overhead_bytes),
        )

    def is_exceeded_by(self, delta: Bytes) -> bool:
        """Whether requested bytes or overhead, as far as it is known, differ by more than this."""
        return abs(delta.requested_bytes) > self.requested_bytes or abs(delta.overhead_bytes or 0) > self.overhead_bytes


def steps_between(measured: Mapping[int, Bytes]) -> tuple[ByteStep, ...]:
    """Return the steps between the measured positions, in order; they sum to the last minus the first."""
    positions = sorted(measured)
    return tuple(
        ByteStep(after=before, at=at, delta=measured[at] - measured[before]) for before, at in pairwise(positions)
    )


@dataclass(frozen=True, kw_only=True)
class Range:
    """Two measured positions with none measured between them.

    Args:
        search: its good end is the first position, its bad end the last.
        first: the bytes at the first position.
        last: the bytes at the last.
        differs: by more than the threshold.
    """

    search: Search
    first: Bytes
    last: Bytes
    differs: bool = False

    @property
    def step(self) -> ByteStep:
        """The range as a step."""
        return ByteStep(after=self.search.good, at=self.search.bad, delta=self.last - self.first)

    @cached_property
    def priority(self) -> tuple[int, int]:
        """Sorts the ranges: of those that differ the heaviest first, of the others the widest."""
        delta = self.last - self.first
        weight = max(abs(delta.requested_bytes), abs(delta.overhead_bytes or 0))
        return -(weight if self.differs else len(self.search.open)), self.search.good


@dataclass(frozen=True, kw_only=True)
class StepSearch:
    """The state of a search for steps.

    Args:
        ranges: from the first position of the line to the last, in order, each beginning where the one before ends.
        threshold: what a range's ends differ by at most to be left alone.
        looks: how many positions may yet be asked about inside ranges that are left alone.

    Let n be the candidates, u the untestable positions met, and k the steps found, of which a stretch of positions
    that cannot be told apart is one. Under a threshold of nothing every range that is split holds one of them, and no
    range is split more often than a bisection halves, so that the good answers number at most
    ``k * (ceil(log2(n)) + extra_probes(u))``. Under another, changes that are below it one by one and above it
    together count among the k.
    """

    ranges: tuple[Range, ...]
    threshold: Threshold
    looks: int = 0

    @classmethod
    def over(cls, last: int, first_bytes: Bytes, last_bytes: Bytes, threshold: Threshold) -> StepSearch:
        """Return the search among positions 0 to ``last``, which are both measured.

        Raises:
            ValueError: there is no candidate.
        """
        state = cls(ranges=(), threshold=threshold)
        return replace(state, ranges=(state._range(Search.over(last), first_bytes, last_bytes),))

    def looking(self, looks: int) -> StepSearch:
        """Return the search that may ask about ``looks`` positions inside ranges whose ends do not differ."""
        return replace(self, looks=looks)

    @cached_property
    def wanted(self) -> int | None:
        """The position to measure next; None when the search is over.

        The range that differs most comes first, so that a search that is stopped knows the heaviest steps. Without
        one, a look goes into the middle of the range with most open positions, which spreads them evenly.
        """
        if self.splitting:
            return self.splitting[0].wanted
        resting = [range_ for range_ in self.ranges if range_.search.open] if self.looks else []
        return min(resting, key=lambda range_: range_.priority).search.wanted if resting else None

    @cached_property
    def splitting(self) -> tuple[Search, ...]:
        """The searches of the ranges that are going to be split, the one that differs most first."""
        differing = [range_ for range_ in self.ranges if range_.differs and range_.search.open]
        return tuple(range_.search for range_ in sorted(differing, key=lambda range_: range_.priority))

    def with_answer(self, position: int, measured: Bytes | None) -> StepSearch:
        """Return the search that also knows the bytes at ``position`` (None: untestable), wanted or not."""
        place = bisect_left(self.ranges, position, key=lambda range_: range_.search.bad)
        range_ = self.ranges[place]
        search = range_.search
        if position not in search.open:
            return self
        parts = [replace(range_, search=search.with_answer(position, Answer.UNTESTABLE))]
        if measured is not None:
            before = self._range(search.with_answer(position, Answer.BAD), range_.first, measured)
            parts = [before, self._range(search.with_answer(position, Answer.GOOD), measured, range_.last)]
        looks = self.looks if range_.differs else max(0, self.looks - 1)
        return replace(self, ranges=(*self.ranges[:place], *parts, *self.ranges[place + 1 :]), looks=looks)

    def looks_ahead(self) -> Iterator[int]:
        """Yield the positions that are looked at one after the other as long as no look finds a difference."""
        state = self
        while not state.splitting and (position := state.wanted) is not None:
            yield position
            place = bisect_left(state.ranges, position, key=lambda range_: range_.search.bad)
            state = state.with_answer(position, state.ranges[place].first)

    @property
    def steps(self) -> tuple[ByteStep, ...]:
        """The ranges whose ends differ by more than the threshold, in order.

        Once nothing is wanted, each is one position, or a stretch of positions that cannot be told apart.
        """
        return tuple(range_.step for range_ in self.ranges if range_.differs)

    @property
    def unseen(self) -> tuple[ByteStep, ...]:
        """The other ranges that hold positions which may yet be tested: below the threshold, or with equal ends."""
        return tuple(range_.step for range_ in self.ranges if not range_.differs and range_.search.open)

    def _range(self, search: Search, first: Bytes, last: Bytes) -> Range:
        return Range(search=search, first=first, last=last, differs=self.threshold.is_exceeded_by(last - first))


Row = TypeVar("Row")


def heaviest(steps: Sequence[Row], weight: Callable[[Row], int], *, is_culprit_known: bool) -> Row | None:
    """Return the step that weighs most in the direction of the range; None where nothing changed.

    Where something is at fault the direction is up: what took bytes away is not what filled the card. Elsewhere it is
    that of the sum of all steps. Of steps that cancel each other the one that changed most is returned, of equal ones
    the first, since the later ones took it back.

    Args:
        steps: all steps of a range, from its good end to its bad end.
        weight: the bytes of a step, with their sign.
        is_culprit_known: whether something in the range is at fault.
    """
    weights = [weight(step) for step in steps]
    total = 1 if is_culprit_known else sum(weights)
    along = [abs(each) if total == 0 else each if total > 0 else -each for each in weights]
    most = max(along, default=0)
    return steps[along.index(most)] if most > 0 else None
