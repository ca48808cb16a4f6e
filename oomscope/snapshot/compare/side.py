"""One side of a comparison: a device of a snapshot at its peak of requested bytes, as facts, tables and a curve.

Phase and categories are those of the recording; a recording that has none is read by its stacks and lifetimes
(:mod:`oomscope.snapshot.infer.inferred`), and the facts say so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final, Literal, NamedTuple

import numpy as np

from oomscope.document import Document
from oomscope.snapshot.accounting.attribution import OLDER, by_site, by_size, by_stack
from oomscope.snapshot.accounting.idle_before import idle_before
from oomscope.snapshot.accounting.stack_tree import LiveStacks
from oomscope.snapshot.accounting.timeline import Timeline, iterations_of
from oomscope.snapshot.compare.changes import Held
from oomscope.snapshot.infer.inferred import Inferred
from oomscope.snapshot.sites import Site, SiteBytes, over_layers, site_of
from oomscope.snapshot.trace import Action, Stack, Trace
from oomscope.units import Bytes


@dataclass(frozen=True, kw_only=True)
class Facts(Document):
    """The peak of requested bytes of one device, and what stood beside it."""

    also_written: ClassVar[tuple[str, ...]] = ("overhead_at_peak_bytes",)

    device: int
    events: int
    event: int
    """The event of the peak; -1: before the first event, or there is none."""
    peak: Bytes
    """The most requested and the most reserved bytes, perhaps at two moments."""
    blocks: int
    reserved_at_peak_bytes: int
    """Bytes of segments at the peak of requested bytes."""
    phase: str
    """Phase of the peak; empty where unknown."""
    iteration: int
    """Iteration of the peak; -1 where unknown, as for the microbatch."""
    microbatch: int
    site: Site | None
    """The line whose allocation made the peak."""
    older_bytes: int
    """Requested bytes that were there before the recording and keep no stack."""
    idle_before_bytes: int
    """Reserved before the recording and never used in it; where there is any, an earlier peak is not in the file."""
    failed_bytes: int | None
    """The last request that failed; null where none did."""
    inferred: bool
    """Whether phases and categories are inferred, since the recording has none."""

    @property
    def overhead_at_peak_bytes(self) -> int:
        """Reserved bytes at the peak that no live request explains."""
        return self.reserved_at_peak_bytes - self.peak.requested_bytes


@dataclass(frozen=True)
class Side(Inferred):
    """A device of a snapshot, at the peak of ``phase`` (one of :meth:`phase_peaks`), or of all where that is empty."""

    phase: str = ""

    @cached_property
    def event(self) -> int:
        """The event at which requested bytes peak."""
        if not self.phase:
            return self.timeline.peak_event()
        trace = self.timeline.trace
        wanted = [index for index, moment in enumerate(trace.moments) if moment.phase == self.phase]
        inside = np.flatnonzero(np.isin(trace.moment_id, wanted))
        return int(inside[self.timeline.requested[inside].argmax()])

    @cached_property
    def sites(self) -> tuple[SiteBytes, ...]:
        """Requested bytes at the peak by line, module and category; the equal modules of a list are one."""
        return by_site(self.bare, self.event, _over_layers, self.evidence.category)

    @cached_property
    def stacks(self) -> LiveStacks:
        """Requested bytes at the peak by whole stack."""
        return by_stack(self.bare, {"": self.bare.requested_at(self.event)}, self.evidence.category)

    def by(self, name: Callable[[SiteBytes], str]) -> dict[str, Held]:
        """Return requested bytes at the peak by some name of their lines."""
        held: dict[str, Held] = {}
        for row in self.sites:
            held[name(row)] = held.get(name(row), Held()).plus(Held(row.bytes, row.count))
        return held

    def by_size(self) -> dict[str, Held]:
        """Return requested bytes at the peak by the allocator's classes of sizes."""
        return {row.label: Held(row.bytes, row.count) for row in by_size(self.bare, self.bare.requested_at(self.event))}

    def phase_peaks(self) -> dict[str, int]:
        """Return the peak of requested bytes in each phase that is known, in the order of their first events."""
        peaks: dict[str, int] = {}
        for row in self.timeline.phase_peaks():
            if row.phase:
                peaks[row.phase] = max(peaks.get(row.phase, 0), row.requested_bytes)
        return peaks

    def facts(self) -> Facts:
        """Return the facts about the peak that no table holds."""
        timeline, trace, event = self.timeline, self.timeline.trace, self.event
        inside = event >= 0
        moment = trace.moment_of(event)
        stack = trace.attributed_stack(event) if inside else ()
        failed = np.flatnonzero(trace.action == Action.OOM)
        return Facts(
            device=trace.device,
            events=len(trace),
            event=event,
            peak=Bytes(
                requested_bytes=timeline.requested_bytes_at(event),
                reserved_bytes=timeline.reserved_peak().reserved_bytes,
            ),
            blocks=sum(row.count for row in self.sites),
            reserved_at_peak_bytes=timeline.reserved_bytes_at(event),
            **moment._asdict(),
            site=site_of(stack, trace.modules[trace.module_id[event]] if inside else ""),
            older_bytes=sum(row.bytes for row in self.sites if row.site == OLDER),
            idle_before_bytes=idle_before(self.bare),
            failed_bytes=int(trace.size[failed[-1]]) if len(failed) else None,
            inferred=not trace.category.any(),
        )


def _over_layers(stack: Stack, module: str) -> Site | None:
    """Return the line of a stack, with one name for the equal modules of a list: ``layers.*.mlp``."""
    return site_of(stack, over_layers(module))


POINTS: Final = 240
"""Points of a curve; wide enough for a page."""


class Stretch(NamedTuple):
    """A part of the axis."""

    name: str
    start: float
    """Start of the part, from 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class Overlay(Document):
    """Both curves of requested bytes, equally long.

    Where both traces know their iterations, every iteration is as wide as the other side's; elsewhere the axis is the
    share of the events. Each point is the maximum of its stretch, so that no peak is lost.
    """

    aligned_by: Literal["iteration", "event"]
    before: tuple[int, ...]
    after: tuple[int, ...]
    stretches: tuple[Stretch, ...] = ()
    """The iterations, where they are known."""

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return super().to_json() | {"stretches": [stretch._asdict() for stretch in self.stretches]}


def overlay(before: Timeline, after: Timeline) -> Overlay:
    """Return the requested bytes of both sides over one axis; a side without events is empty."""
    names = _common_iterations(before.trace, after.trace)
    each = max(1, POINTS // len(names)) if names else POINTS
    old, new = (_sampled(side, names, each) for side in (before, after))
    stretches = tuple(
        Stretch("before the first iteration" if name < 0 else f"iteration {name}", index / len(names))
        for index, name in enumerate(names)
    )
    return Overlay(aligned_by="iteration" if names else "event", before=old, after=new, stretches=stretches)


def _sampled(timeline: Timeline, names: list[int], points: int) -> tuple[int, ...]:
    """Return ``points`` maxima of each iteration, or of the whole; a point without an event repeats the last one."""
    curve, parts = timeline.requested, max(1, len(names))
    if not len(curve):
        return ()
    part = np.searchsorted(names, iterations_of(timeline.trace)) if names else np.zeros(len(curve), dtype=np.int64)
    first = np.searchsorted(part, np.arange(parts))
    length = np.maximum(1, np.searchsorted(part, np.arange(parts), side="right") - first)
    slot = part * points + (np.arange(len(curve)) - first[part]) * points // length[part]
    highest = np.full(parts * points, -1, dtype=np.int64)
    np.maximum.at(highest, slot, curve)
    seen = np.maximum.accumulate(np.where(highest >= 0, np.arange(len(highest)), 0))
    return tuple(np.maximum(highest[seen], 0).tolist())


def _common_iterations(before: Trace, after: Trace) -> list[int]:
    """Return the iterations that either side has (-1: what came before the first); none where a side has none."""
    names: set[int] = set()
    for trace in (before, after):
        own = iterations_of(trace)
        if not len(own) or own[-1] < 0:
            return []
        names.update(np.unique(own).tolist())
    return sorted(names)
