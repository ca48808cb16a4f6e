"""The timeline that reports draw, in bins of equal numbers of events, without losing a peak.

A bin stands for the event at which most is requested in it, together with what was requested then; nothing is averaged,
so every composition that is shown was real.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from oomscope.snapshot.accounting.lifetimes import Indices
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.explain.explanation import Curves
from oomscope.snapshot.infer.categorise import Evidence
from oomscope.snapshot.sites import Site, site_of
from oomscope.snapshot.trace import Category, Moment

POINTS: Final = 200
"""Points of the curves in a document."""
CROWDED: Final = 0.1
ORDER: Final = (
    Category.PARAMETER,
    Category.OPTIMIZER_STATE,
    Category.MAIN_GRADIENT,
    Category.GRADIENT,
    Category.KEPT,
    Category.INPUT,
    Category.ACTIVATION,
    Category.WORKSPACE,
    Category.COMMUNICATION,
    Category.TEMPORARY,
    Category.UNKNOWN,
)
"""Order in which categories are stacked: what stays longest lies at the bottom."""


@dataclass(frozen=True, kw_only=True)
class Bins:
    """A timeline of n bins; columns have n entries."""

    per_bin: int
    """Events a bin; the last one may have fewer."""
    total: int
    """Events in all."""
    event: Indices
    """The event that stands for the bin."""
    time_us: NDArray[np.int64]
    """Time of that event since the first one; -1 where the file has no times."""
    requested: dict[str, NDArray[np.int64]]
    """Requested bytes right after that event, by category, in the order of the stack; together what was live."""
    reserved: NDArray[np.int64]
    """Most that was reserved in the bin."""
    site: Indices
    """Index into ``sites`` of the event's line."""
    moment: Indices
    """Index into ``moments``; an event without a moment has the last one that was known."""
    sites: tuple[Site | None, ...]
    moments: tuple[Moment, ...]

    def __len__(self) -> int:
        return len(self.event)

    @property
    def all_requested(self) -> NDArray[np.int64]:
        """Requested bytes over all categories."""
        return sum(self.requested.values(), start=np.zeros_like(self.event))

    @property
    def peak(self) -> int:
        """The first bin in which most is live."""
        return int(self.all_requested.argmax())

    @property
    def is_timed(self) -> bool:
        """Whether the axis can be time: every event has one."""
        return len(self) > 1 and bool((self.time_us >= 0).all() and self.time_us[-1] > self.time_us[0])

    @property
    def is_by_time(self) -> bool:
        """Whether the axis is time: unless half of the events would share less than :data:`CROWDED` of it."""
        if not self.is_timed:
            return False
        early, late = np.quantile(self.time_us, (0.25, 0.75))
        return bool(late - early >= CROWDED * self.time_us[-1])

    @property
    def edges(self) -> NDArray[np.int64]:
        """Start of each bin, and end of the last one: in microseconds where the axis is time, else in events.

        The last state lasts as long as the average one, so that it is seen.
        """
        if not self.is_by_time:
            return np.append(np.arange(len(self)) * self.per_bin, self.total)
        begins = np.maximum.accumulate(self.time_us)
        begins[0] = 0
        return np.append(begins, begins[-1] + max(1, int(begins[-1]) // len(self)))

    def place_of(self, event: int) -> float:
        """Return where on that axis ``event`` lies: in the middle of its bin."""
        at = min(max(event, 0) // self.per_bin, len(self) - 1)
        return float(self.edges[at : at + 2].mean())

    def highest(self, factor: int) -> Indices:
        """Return the event that stands for each ``factor`` bins."""
        return self.event[_highest(self.all_requested, factor)]

    def coarser(self, factor: int) -> Bins:
        """Return the same in bins of ``factor`` times as many events."""
        chosen = _highest(self.all_requested, factor)
        sites, site = np.unique(self.site[chosen], return_inverse=True)
        return replace(
            self,
            per_bin=self.per_bin * factor,
            event=self.event[chosen],
            time_us=self.time_us[chosen],
            requested={name: curve[chosen] for name, curve in self.requested.items()},
            reserved=_largest(self.reserved, factor),
            site=site,
            sites=tuple(self.sites[number] for number in sites.tolist()),
            moment=self.moment[chosen],
        )


def bins_of(timeline: Timeline, evidence: Evidence, per_bin: int) -> Bins:
    """Return the timeline in bins of ``per_bin`` events each."""
    trace = timeline.trace
    event = _highest(timeline.requested, per_bin)
    present = set(np.unique(evidence.category).tolist())
    requested = {
        each.label: timeline.requested_of(evidence.category == each)[event] for each in ORDER if each in present
    }
    time = trace.time_us[event]
    first = int(trace.time_us[0]) if len(trace) else 0
    sites, site = _sites(timeline, event)
    known = np.maximum.accumulate(np.where(trace.moment_id > 0, np.arange(len(trace)), 0))
    moments, moment = np.unique(trace.moment_id[known[event]], return_inverse=True)
    return Bins(
        per_bin=per_bin,
        total=len(trace),
        event=event,
        time_us=np.where(time >= 0, time - first, -1),
        requested={name: curve for name, curve in requested.items() if curve.any()},
        reserved=_largest(timeline.reserved, per_bin),
        site=site,
        moment=moment.reshape(-1),
        sites=sites,
        moments=tuple(trace.moments[each] for each in moments.tolist()),
    )


def curves_of(timeline: Timeline, evidence: Evidence) -> Curves:
    """Return requested bytes, in all and by category, and reserved bytes at up to :data:`POINTS` events."""
    bins = bins_of(timeline, evidence, max(1, -(-len(timeline.trace) // POINTS)))
    return Curves(
        events=tuple(bins.event.tolist()),
        requested=tuple(bins.all_requested.tolist()),
        reserved=tuple(timeline.reserved[bins.event].tolist()),
        categories={name: tuple(curve.tolist()) for name, curve in bins.requested.items()},
    )


def _highest(curve: Indices, per_bin: int) -> Indices:
    padded = np.full(-(-len(curve) // per_bin) * per_bin, -1, dtype=np.int64)
    padded[: len(curve)] = curve
    rows = padded.reshape(-1, per_bin)
    highest: Indices = rows.argmax(axis=1) + np.arange(len(rows)) * per_bin
    return highest


def _largest(curve: Indices, per_bin: int) -> Indices:
    return np.maximum.reduceat(curve, np.arange(0, len(curve), per_bin)) if len(curve) else curve


def _sites(timeline: Timeline, events: Indices) -> tuple[tuple[Site | None, ...], Indices]:
    """Return the distinct lines of ``events``, and the index of each event's line.

    What was allocated in backward is of the forward line that caused it, where that is known.
    """
    trace = timeline.trace
    forward = trace.forward_stack_id[events]
    stacks, stack = np.unique(np.where(forward > 0, forward, trace.stack_id[events]), return_inverse=True)
    numbers: dict[Site | None, int] = {}
    of_stack = [numbers.setdefault(site_of(trace.stacks[each]), len(numbers)) for each in stacks.tolist()]
    return tuple(numbers), np.array(of_stack, dtype=np.int64)[stack.reshape(-1)]
