"""One side of a comparison: a device of a snapshot at its peak of live bytes, as facts and as tables.

Phase and categories are those of the recording; a recording that has none is read by its stacks and lifetimes
(:mod:`oomscope.snapshot.evidence`), and the facts say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oomscope.snapshot.attribution import OLDER, by_site
from oomscope.snapshot.changes import Held
from oomscope.snapshot.doing import Doing, activity_of
from oomscope.snapshot.evidence import categorise
from oomscope.snapshot.sites import Site, SiteBytes, site_of
from oomscope.snapshot.timeline import Timeline
from oomscope.snapshot.trace import Action, Snapshot, Stack
from oomscope.units import format_size

SMALLEST_CLASS = 512
"""Bytes: the allocator rounds every request up to a multiple of it (PyTorch, ``kMinBlockSize``)."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The peak of live requested bytes of one device, and what stood beside it."""

    device: int
    events: int
    event: int
    """Where the peak stands; -1: before the first event, or there is none."""
    live_bytes: int
    blocks: int
    reserved_bytes: int
    """Bytes of segments at that event."""
    peak_reserved_bytes: int
    """The largest amount of reserved bytes, at any event."""
    phase: str
    """Empty where unknown."""
    iteration: int
    """-1 where unknown; so is the microbatch."""
    microbatch: int
    site: Site | None
    """The line whose allocation made the peak."""
    older_bytes: int
    """Live bytes that were there before the recording and keep no stack."""
    failed_bytes: int | None
    """The last request that failed; null where none did."""
    inferred: bool
    """Phases and categories are inferred, since the recording has none."""

    @property
    def overhead_bytes(self) -> int:
        """Reserved bytes at the peak that no live request explains."""
        return self.reserved_bytes - self.live_bytes

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {**asdict(self), "overhead_bytes": self.overhead_bytes}


@dataclass(frozen=True)
class Side:
    """A device of a snapshot.

    Args:
        snapshot: what was recorded.
        timeline: the device's curves.
        phase: look for the peak in this phase alone, one of :meth:`phase_peaks`; empty: anywhere.
    """

    snapshot: Snapshot
    timeline: Timeline
    phase: str = ""

    @cached_property
    def event(self) -> int:
        """Where live bytes peak."""
        if not self.phase:
            return self.timeline.peak_event()
        number, names = self._phases
        inside = np.flatnonzero(np.isin(number, [index for index, name in enumerate(names) if name == self.phase]))
        return int(inside[self.timeline.live[inside].argmax()])

    @cached_property
    def sites(self) -> tuple[SiteBytes, ...]:
        """Live bytes at the peak by line, module and category; the equal modules of a list are one."""
        evidence = categorise(self.timeline, self.snapshot.annotations)
        return by_site(self.timeline, self.event, _over_layers, evidence.category)

    def by(self, name: Callable[[SiteBytes], str]) -> dict[str, Held]:
        """Return live bytes at the peak by some name of their lines."""
        return _summed((name(row), row.bytes, row.count) for row in self.sites)

    def by_size(self) -> dict[str, Held]:
        """Return live bytes at the peak by size of block, in powers of two."""
        sizes: list[int] = self.timeline.lifetimes.size[self.timeline.live_at(self.event)].tolist()
        return _summed((size_class(size), size, 1) for size in sizes)

    def phase_peaks(self) -> dict[str, int]:
        """Return the peak of live bytes in each phase that is known, in the order of their first events."""
        number, names = self._phases
        peaks: dict[str, int] = {}
        for phase in dict.fromkeys(number.tolist()):
            if name := names[phase]:
                peaks[name] = max(peaks.get(name, 0), int(self.timeline.live[number == phase].max()))
        return peaks

    @cached_property
    def _phases(self) -> tuple[NDArray[np.integer], Sequence[str]]:
        """Return for each event the number of its phase, and the names."""
        trace = self.timeline.trace
        if any(moment.phase for moment in trace.moments):
            return trace.moment_id, [moment.phase for moment in trace.moments]
        doing = activity_of(self.timeline, self.snapshot.annotations).at
        return doing, ["" if each is Doing.UNKNOWN else each.name.lower() for each in Doing]

    def facts(self) -> Facts:
        """Return what is said of the peak beside its tables."""
        timeline, trace, event = self.timeline, self.timeline.trace, self.event
        inside = event >= 0
        number, names = self._phases
        moment = trace.moments[trace.moment_id[event] if inside else 0]
        stack = trace.stacks[(trace.forward_stack_id[event] or trace.stack_id[event]) if inside else 0]
        held = sum(segment.total_size for segment in timeline.segments or ())
        failed = np.flatnonzero(trace.action == Action.OOM)
        return Facts(
            device=trace.device,
            events=len(trace),
            event=event,
            live_bytes=timeline.live_bytes_at(event),
            blocks=sum(row.count for row in self.sites),
            reserved_bytes=int(timeline.reserved[event]) if inside else held,
            peak_reserved_bytes=int(timeline.reserved.max()) if inside else held,
            phase=names[number[event]] if inside else "",
            iteration=moment.iteration,
            microbatch=moment.microbatch,
            site=site_of(stack, trace.modules[trace.module_id[event]] if inside else ""),
            older_bytes=sum(row.bytes for row in self.sites if row.site == OLDER),
            failed_bytes=int(trace.size[failed[-1]]) if len(failed) else None,
            inferred=not trace.category.any(),
        )


def size_class(size: int) -> str:
    """Return the power of two, from 512 B on, that a block of ``size`` bytes does not exceed: ``up to 2 MiB``."""
    return f"up to {format_size(max(SMALLEST_CLASS, 1 << max(0, size - 1).bit_length()), digits=0)}"


def _over_layers(stack: Stack, module: str) -> Site | None:
    """Return the line of a stack, with one name for the equal modules of a list: ``layers.*.mlp``."""
    return site_of(stack, ".".join("*" if part.isdigit() else part for part in module.split(".")))


def _summed(rows: Iterable[tuple[str, int, int]]) -> dict[str, Held]:
    """Add up bytes and blocks by name."""
    held: dict[str, Held] = {}
    for name, size, blocks in rows:
        held[name] = held.get(name, Held()).plus(Held(size, blocks))
    return held
