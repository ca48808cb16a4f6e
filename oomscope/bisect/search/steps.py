"""Steps of bytes along a line: pure. Ranges whose ends differ are split until every visible step is found.

A step between neighbours is exact; one over several commits says where to look. All of them sum to the difference of
the two ends. A range whose ends do not differ is left alone: a step and its revert inside cannot be seen from its
ends. A number of looks buys probes inside such ranges.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

from oomscope.allocator.constants import LARGE_SEGMENT_DEFAULT
from oomscope.bisect.search.line import Answer, Search
from oomscope.bisect.search.measured import Bytes


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
    """What bytes may differ by without being looked into.

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


ByteOracle = Callable[[int], Bytes | None]
"""Returns the bytes at a position; None where it cannot be tested."""


@dataclass(frozen=True, kw_only=True)
class Range:
    """Two measured positions with none measured between them."""

    search: Search
    """Its good end is the first position, its bad end the last."""
    first: Bytes
    last: Bytes

    @property
    def delta(self) -> Bytes:
        """From the first position to the last."""
        return self.last - self.first

    @property
    def step(self) -> ByteStep:
        """The range as a step."""
        return ByteStep(after=self.search.good, at=self.search.bad, delta=self.delta)


@dataclass(frozen=True, kw_only=True)
class StepSearch:
    """The state of a search for steps.

    Args:
        ranges: from the first position of the line to the last, in order, each beginning where the one before ends.
        differing: those that are going to be split, the one that differs most first.
        resting: the others with open positions, the one with most of them first.
        threshold: what a range's ends differ by at most to be left alone.
        looks: how many positions may yet be asked about inside ranges that are left alone.

    Let n be the candidates, u the untestable positions met, and k the steps found, of which a stretch of positions
    that cannot be told apart is one. Under a threshold of nothing every range that is split holds one of them, and no
    range is split more often than a bisection halves, so that the good answers number at most
    ``k * (ceil(log2(n)) + extra_probes(u))``. Under another, changes that are below it one by one and above it
    together count among the k.
    """

    ranges: tuple[Range, ...]
    differing: tuple[Range, ...] = ()
    resting: tuple[Range, ...] = ()
    threshold: Threshold
    looks: int = 0

    @classmethod
    def over(cls, last: int, first_bytes: Bytes, last_bytes: Bytes, threshold: Threshold) -> StepSearch:
        """Return the search among positions 0 to ``last``, both of which are measured.

        Raises:
            ValueError: there is no candidate.
        """
        whole = Range(search=Search.over(last), first=first_bytes, last=last_bytes)
        return cls(ranges=(whole,), threshold=threshold)._queueing(whole)

    def looking(self, looks: int) -> StepSearch:
        """Return the search that may ask about ``looks`` positions inside ranges whose ends do not differ."""
        return replace(self, looks=looks)

    @cached_property
    def wanted(self) -> int | None:
        """The position to measure next; None when the search is over.

        The range that differs most comes first, so that a search that is stopped knows the heaviest steps. Without
        one, a look goes into the middle of the range with most open positions, which spreads them evenly.
        """
        if self.differing:
            return self.differing[0].search.wanted
        return self.resting[0].search.wanted if self.resting and self.looks else None

    @property
    def splitting(self) -> tuple[Search, ...]:
        """The searches of the ranges that are going to be split, the one that differs most first."""
        return tuple(range_.search for range_ in self.differing)

    def told(self, position: int, measured: Bytes | None) -> StepSearch:
        """Return the search that also knows the bytes at ``position`` (None: untestable), wanted or not.

        A position that is known already changes nothing.
        """
        place = bisect_left(self.ranges, position, key=lambda range_: range_.search.bad)
        range_ = self.ranges[place]
        search = range_.search
        if position not in search.open:
            return self
        parts = [replace(range_, search=search.told(position, Answer.UNTESTABLE))]
        if measured is not None:
            before = replace(range_, search=search.told(position, Answer.BAD), last=measured)
            after = replace(range_, search=search.told(position, Answer.GOOD), first=measured)
            parts = [before, after]
        looks = self.looks if self._differs(range_) else max(0, self.looks - 1)
        ranges = (*self.ranges[:place], *parts, *self.ranges[place + 1 :])
        return replace(self._without(range_), ranges=ranges, looks=looks)._queueing(*parts)

    def looks_ahead(self) -> Iterator[int]:
        """Yield the positions that are looked at one after the other as long as no look finds a difference."""
        state = self
        while not state.differing and (position := state.wanted) is not None:
            yield position
            place = bisect_left(state.ranges, position, key=lambda range_: range_.search.bad)
            state = state.told(position, state.ranges[place].first)

    @property
    def steps(self) -> tuple[ByteStep, ...]:
        """The ranges whose ends differ by more than the threshold, in order.

        Once nothing is wanted, each is one position, or a stretch of positions that cannot be told apart.
        """
        return tuple(range_.step for range_ in self.ranges if self._differs(range_))

    @property
    def unseen(self) -> tuple[ByteStep, ...]:
        """The other ranges that hold positions which may yet be tested: below the threshold, or with equal ends."""
        return tuple(range_.step for range_ in self.ranges if not self._differs(range_) and range_.search.open)

    def _without(self, range_: Range) -> StepSearch:
        """Return the search in which ``range_`` waits no more to be asked about."""
        if self._differs(range_):
            place = bisect_left(self.differing, _lightness(range_), key=_lightness)
            return replace(self, differing=(*self.differing[:place], *self.differing[place + 1 :]))
        place = bisect_left(self.resting, _narrowness(range_), key=_narrowness)
        return replace(self, resting=(*self.resting[:place], *self.resting[place + 1 :]))

    def _queueing(self, *ranges: Range) -> StepSearch:
        """Return the search in which those of ``ranges`` that have open positions wait to be asked about."""
        differing, resting = list(self.differing), list(self.resting)
        for range_ in ranges:
            if range_.search.open and self._differs(range_):
                insort(differing, range_, key=_lightness)
            elif range_.search.open:
                insort(resting, range_, key=_narrowness)
        return replace(self, differing=tuple(differing), resting=tuple(resting))

    def _differs(self, range_: Range) -> bool:
        return self.threshold.is_exceeded_by(range_.delta)


def run(search: StepSearch, oracle: ByteOracle) -> StepSearch:
    """Answer every question of ``search`` with ``oracle``, one after the other, and return its last state."""
    while (position := search.wanted) is not None:
        search = search.told(position, oracle(position))
    return search


def _lightness(range_: Range) -> tuple[int, int]:
    """Return the place of a range among those that differ: the heaviest first, then the first of the line."""
    return -max(abs(range_.delta.requested_bytes), abs(range_.delta.overhead_bytes or 0)), range_.search.good


def _narrowness(range_: Range) -> tuple[int, int]:
    """Return the place of a range among those that do not: the widest first, then the first of the line."""
    return -len(range_.search.open), range_.search.good


Row = TypeVar("Row")


def heaviest(steps: Sequence[Row], weight: Callable[[Row], int], *, is_culprit_known: bool) -> Row | None:
    """Return the step that weighs most in the direction of the range; None where nothing changed.

    Where something is at fault the direction is up: what took bytes away is not what filled the card. Elsewhere it is
    that of the sum of all steps. Steps that cancel each other have no direction: the one that changed most is
    returned, of equal ones the first, since the later ones took it back.

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
