"""One side of a comparison: a device of a snapshot at its peak of requested bytes, as facts and as tables.

Phase and categories are those of the recording; a recording that has none is read by its stacks and lifetimes
(:mod:`oomscope.snapshot.infer.inferred`), and the facts say so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from oomscope.snapshot.attribution import OLDER, by_site, by_size
from oomscope.snapshot.compare.changes import Held
from oomscope.snapshot.infer.inferred import Inferred
from oomscope.snapshot.sites import Site, SiteBytes, site_of
from oomscope.snapshot.trace import Action, Stack


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The peak of requested bytes of one device, and what stood beside it."""

    device: int
    events: int
    event: int
    """Where the peak stands; -1: before the first event, or there is none."""
    requested_bytes: int
    blocks: int
    reserved_bytes: int
    """Bytes of segments at that event."""
    peak_reserved_bytes: int
    """The largest amount of reserved bytes, at any event or before the first."""
    phase: str
    """Empty where unknown."""
    iteration: int
    """-1 where unknown; so is the microbatch."""
    microbatch: int
    site: Site | None
    """The line whose allocation made the peak."""
    older_bytes: int
    """Requested bytes that were there before the recording and keep no stack."""
    failed_bytes: int | None
    """The last request that failed; null where none did."""
    inferred: bool
    """Phases and categories are inferred, since the recording has none."""

    @property
    def overhead_bytes(self) -> int:
        """Reserved bytes at the peak that no live request explains."""
        return self.reserved_bytes - self.requested_bytes

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {**asdict(self), "overhead_bytes": self.overhead_bytes}


@dataclass(frozen=True)
class Side(Inferred):
    """A device of a snapshot.

    Args:
        snapshot: what was recorded.
        recorded: the events of the device.
        phase: look for the peak in this phase alone, one of :meth:`phase_peaks`; empty: anywhere.
    """

    phase: str = ""

    @cached_property
    def event(self) -> int:
        """Where requested bytes peak."""
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
        """Return what is said of the peak beside its tables."""
        timeline, trace, event = self.timeline, self.timeline.trace, self.event
        inside = event >= 0
        moment = trace.moments[trace.moment_id[event] if inside else 0]
        stack = trace.stacks[(trace.forward_stack_id[event] or trace.stack_id[event]) if inside else 0]
        failed = np.flatnonzero(trace.action == Action.OOM)
        return Facts(
            device=trace.device,
            events=len(trace),
            event=event,
            requested_bytes=timeline.requested_bytes_at(event),
            blocks=sum(row.count for row in self.sites),
            reserved_bytes=timeline.reserved_bytes_at(event),
            peak_reserved_bytes=timeline.reserved_peak().reserved_bytes,
            phase=moment.phase,
            iteration=moment.iteration,
            microbatch=moment.microbatch,
            site=site_of(stack, trace.modules[trace.module_id[event]] if inside else ""),
            older_bytes=sum(row.bytes for row in self.sites if row.site == OLDER),
            failed_bytes=int(trace.size[failed[-1]]) if len(failed) else None,
            inferred=not trace.category.any(),
        )


def _over_layers(stack: Stack, module: str) -> Site | None:
    """Return the line of a stack, with one name for the equal modules of a list: ``layers.*.mlp``."""
    return site_of(stack, ".".join("*" if part.isdigit() else part for part in module.split(".")))
