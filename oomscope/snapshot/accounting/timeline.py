"""Curves over a trace: requested and reserved bytes after every event, their peaks, and what was requested when.

Requested bytes are those of torch's statistic of that name: what the program asked for and holds, and what it freed
but a stream still uses. Held bytes leave the latter out. Reserved bytes are the segments'. A recording that began in
the middle is lifted by what was there before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from oomscope.allocator.engine.constants import LARGE_SEGMENT_DEFAULT
from oomscope.snapshot.accounting.discrepancies import Discrepancy, discrepancies
from oomscope.snapshot.accounting.lifetimes import BEFORE, Indices, Lifetimes, pair, summed_over_time
from oomscope.snapshot.trace import Action, Segment, Trace

Result = TypeVar("Result")
Curve = NDArray[np.int64]
"""Bytes right after each event."""


class PhasePeak(NamedTuple):
    """The peak inside one phase of one iteration, over all its microbatches."""

    phase: str
    iteration: int
    requested_bytes: int
    reserved_bytes: int
    event: int
    """The event at which requested bytes peak."""


class ReservedPeak(NamedTuple):
    """How much the allocator held at most, and the moment at which its overhead is measured.

    It is the moment with most requested bytes among those within one large segment (20 MiB) of the maximum. Otherwise a
    small segment that is allocated late would move it to a moment at which little is requested.
    """

    event: int
    """The moment; -1 for before the first event."""
    reserved_bytes: int
    """Most reserved bytes at any time."""
    requested_bytes: int
    """Requested bytes at the moment."""
    reserved_then_bytes: int
    """Reserved bytes at the moment."""

    @property
    def overhead_bytes(self) -> int:
        """What was reserved at the moment and not requested."""
        return self.reserved_then_bytes - self.requested_bytes


class Reconciliation(NamedTuple):
    """How what was walked through the trace compares with the segments' own counters at the end."""

    walked_bytes: int
    """Requested bytes of active blocks at the end of the trace."""
    segment_bytes: int
    """Requested bytes of active blocks in the segments."""
    inconsistent_events: int
    """Events that contradict others, such as a free of what is not allocated."""
    reasons: tuple[Discrepancy, ...] = ()
    """Reasons why the two differ; their parts sum to the difference. Empty for a consistent file."""

    @property
    def difference_bytes(self) -> int:
        """What does not reconcile."""
        return self.walked_bytes - self.segment_bytes


@dataclass(frozen=True, eq=False)
class Timeline:
    """The curves of one device; equal to itself alone. Segments are those at the end, None where they are unknown."""

    trace: Trace
    segments: tuple[Segment, ...] | None = None

    @classmethod
    def of(cls, trace: Trace, segments: Sequence[Segment] | None = None) -> Timeline:
        """Return the timeline of ``trace``, taking from ``segments`` those of its device."""
        own = None if segments is None else tuple(segment for segment in segments if segment.device == trace.device)
        return cls(trace, own)

    def at_moments_of(self, trace: Trace) -> Timeline:
        """Return the timeline of ``trace``, which is this one's but for the moments, with the curves of this one."""
        other = Timeline(trace, self.segments)
        known = {"lifetimes": self.lifetimes, "requested": self.requested, "_reserved_changes": self._reserved_changes}
        vars(other).update(known)
        return other

    @cached_property
    def lifetimes(self) -> Lifetimes:
        """Every block that the trace or the final segments know."""
        return pair(self.trace, self.segments or ())

    @property
    def begins_late(self) -> bool:
        """Whether memory had been allocated before the first event, as where the ring of events wrapped."""
        return len(self.trace) > 0 and bool((self.lifetimes.born == BEFORE).any())

    @cached_property
    def requested(self) -> Curve:
        """Requested bytes held or pending on a stream: torch's ``requested_bytes.all``."""
        return self.requested_of(slice(None))

    @cached_property
    def held(self) -> Curve:
        """Requested bytes that the program holds."""
        table = self.lifetimes
        return summed_over_time(table.born + 1, table.freed + 1, table.size, table.end + 1)[1:]

    def requested_of(self, chosen: NDArray[np.bool_] | slice) -> Curve:
        """Return the requested bytes of some rows of :attr:`lifetimes` after each event."""
        table = self.lifetimes
        born, completed = table.born[chosen] + 1, table.completed[chosen] + 1
        return summed_over_time(born, completed, table.size[chosen], table.end + 1)[1:]

    @cached_property
    def reserved(self) -> Curve:
        """Bytes of segments. Without final segments, the least that was there before the trace is assumed."""
        return self.initial_reserved_bytes + np.cumsum(self._reserved_changes)

    @property
    def initial_reserved_bytes(self) -> int:
        """Bytes of the segments before the first event."""
        change = np.cumsum(self._reserved_changes)
        if self.segments is None:
            return -int(change.min(initial=0))
        end = int(change[-1]) if len(change) else 0
        return sum(segment.total_size for segment in self.segments) - end

    @cached_property
    def _reserved_changes(self) -> Curve:
        """By how much each event changes reserved bytes."""
        sign = np.zeros(int(max(Action)) + 1, dtype=np.int64)
        sign[[Action.SEGMENT_ALLOC, Action.SEGMENT_MAP]] = 1
        sign[[Action.SEGMENT_FREE, Action.SEGMENT_UNMAP]] = -1
        change: Curve = sign[self.trace.action] * self.trace.size
        return change

    @property
    def initial_requested_bytes(self) -> int:
        """Requested bytes before the first event."""
        return int(self.lifetimes.size[self.lifetimes.requested_at(-1)].sum())

    @property
    def end_requested_bytes(self) -> int:
        """Requested bytes at the end."""
        return int(self.requested[-1]) if len(self.trace) else self.initial_requested_bytes

    def peak_event(self) -> int:
        """Return the first event at which requested bytes are largest.

        -1 where as much was requested before the first event and no allocation made it so again, or there is no event.
        """
        before = self.initial_requested_bytes
        if self.requested.max(initial=-1) < before or not len(self.requested):
            return -1
        event = int(self.requested.argmax())
        is_of_event = self.requested[event] > before or not before or self.trace.action[event] == Action.ALLOC
        return event if is_of_event else -1

    def reserved_peak(self) -> ReservedPeak:
        """Return the most reserved bytes, and the moment near them with most requested bytes."""
        requested = np.append(self.initial_requested_bytes, self.requested)
        reserved = np.append(self.initial_reserved_bytes, self.reserved)
        most = int(reserved.max())
        near = np.flatnonzero(reserved >= most - LARGE_SEGMENT_DEFAULT)
        place = near[np.lexsort((-near, reserved[near], requested[near]))[-1]]
        return ReservedPeak(int(place) - 1, most, int(requested[place]), int(reserved[place]))

    def requested_bytes_at(self, event: int) -> int:
        """Return the requested bytes right after ``event`` (-1: before the first)."""
        return int(self.requested[event]) if event >= 0 else self.initial_requested_bytes

    def reserved_bytes_at(self, event: int) -> int:
        """Return the bytes of segments right after ``event`` (-1: before the first)."""
        return int(self.reserved[event]) if event >= 0 else self.initial_reserved_bytes

    def held_bytes_at(self, event: int) -> int:
        """Return the bytes that the program holds right after ``event`` (-1: before the first)."""
        return int(self.lifetimes.size[self.lifetimes.held_at(event)].sum())

    @property
    def most_held_bytes(self) -> int:
        """The most bytes that the program holds at any time."""
        return int(self.held.max(initial=self.held_bytes_at(-1)))

    def requested_at(self, event: int) -> Indices:
        """Return the rows of :attr:`lifetimes` that :meth:`requested_bytes_at` counts."""
        return self.lifetimes.requested_at(event)

    def phase_peaks(self) -> tuple[PhasePeak, ...]:
        """Return the peak of each phase of each iteration, in the order in which they first appear."""
        trace = self.trace
        numbers: dict[tuple[str, int], int] = {}
        of_moment = [numbers.setdefault((each.phase, each.iteration), len(numbers)) for each in trace.moments]
        spans = np.array(of_moment, dtype=np.int64)[trace.moment_id]
        order = np.argsort(spans, kind="stable")
        _, starts = np.unique(spans[order], return_index=True)
        rows = []
        for inside in np.split(order, starts[1:]) if len(order) else ():
            event = int(inside[self.requested[inside].argmax()])
            moment = trace.moment_of(event)
            requested, reserved = int(self.requested[event]), int(self.reserved[inside].max())
            rows.append((int(inside[0]), PhasePeak(moment.phase, moment.iteration, requested, reserved, event)))
        return tuple(peak for _, peak in sorted(rows, key=lambda row: row[0]))

    @cached_property
    def reconciliation(self) -> Reconciliation:
        """How the end of the walk compares with the segments' own counters."""
        segments = self.segments or ()
        return Reconciliation(
            walked_bytes=self.end_requested_bytes,
            segment_bytes=sum(segment.requested_size for segment in segments),
            inconsistent_events=len(self.lifetimes.inconsistent_events),
            reasons=discrepancies(self.trace, self.lifetimes, segments),
        )


def once(of: Callable[[Timeline], Result]) -> Callable[[Timeline], Result]:
    """Return a function of a timeline that is computed once for each, as long as the timeline is in use."""
    known: WeakKeyDictionary[Timeline, Result] = WeakKeyDictionary()

    @wraps(of)
    def remembered(timeline: Timeline) -> Result:
        if timeline not in known:
            known[timeline] = of(timeline)
        return known[timeline]

    return remembered


def decimate(curve: Curve) -> tuple[int, ...]:
    """Return the maximum of each of up to 120 equal parts of ``curve``, so that no peak is lost."""
    return tuple(np.maximum.reduceat(curve, slice_starts(len(curve), 120)).tolist()) if len(curve) else ()


def slice_starts(length: int, slices: int) -> Indices:
    """Return where each of up to ``slices`` equal parts of ``length`` events begins."""
    return np.unique(np.linspace(0, length, num=min(slices, length), endpoint=False).astype(np.int64))


def iterations_of(trace: Trace) -> Indices:
    """Return the iteration of each event (-1 before the first); events that do not know theirs go on with the last."""
    own = np.array([moment.iteration for moment in trace.moments], dtype=np.int64)[trace.moment_id]
    return np.maximum.accumulate(own) if len(own) else own
