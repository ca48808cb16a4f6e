"""Memory given back to the driver: by the program (``empty_cache``), or by the allocator for a request that failed.

The events are the same. A call of ``empty_cache`` is a request like any other, and made again whatever the settings;
what a failed request released shows how much the device had to give, and is not repeated where there is more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from oomscope.snapshot.accounting.timeline import Timeline, once
from oomscope.snapshot.replay.pools import GIVEN_BACK, TAKEN
from oomscope.snapshot.trace import REMARKS, Action


@dataclass(frozen=True, kw_only=True)
class Release:
    """Segments or pages given back one right after the other."""

    event: int
    """First event of the release."""
    end: int
    """Event after the last one of the release, or the trace's length."""
    refused: bool
    """Whether the driver had refused a request before; else the program called ``empty_cache``."""


@once
def releases_of(timeline: Timeline) -> tuple[Release, ...]:
    """Return the releases of a trace, in order, each with its cause.

    Only a request for more than the allocator was ever seen to hold can have been refused. The stack decides among
    those, where it is recorded: that of the request which goes on to take memory, or that of ``empty_cache``
    (``release_cached_blocks`` in c10/cuda/CUDACachingAllocator.cpp records its caller's).
    """
    trace = timeline.trace
    calls = np.array([_holds_empty_cache(timeline, stack) for stack in range(len(trace.stacks))], dtype=bool)
    most = int(timeline.reserved.max(initial=timeline.initial_reserved_bytes))

    def was_refused(event: int, end: int) -> bool:
        own = int(trace.stack_id[event])
        if end == len(trace) or calls[own]:
            return False
        if trace.action[end] == Action.OOM:
            return True
        following = int(trace.stack_id[end])
        if trace.action[end] not in TAKEN or (own and following and own != following):
            return False
        return timeline.reserved_bytes_at(event - 1) + int(trace.size[end]) > most

    spoken = np.flatnonzero(~np.isin(trace.action, REMARKS))
    gives_back = np.isin(trace.action[spoken], GIVEN_BACK)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], gives_back, [False]]).astype(np.int8)))
    releases = []
    for first, beyond in edges.reshape(-1, 2).tolist():
        event = int(spoken[first])
        end = int(spoken[beyond]) if beyond < len(spoken) else len(trace)
        releases.append(Release(event=event, end=end, refused=was_refused(event, end)))
    return tuple(releases)


def _holds_empty_cache(timeline: Timeline, stack: int) -> bool:
    """Return whether a stack holds torch's ``empty_cache``, under its Python or its C++ name."""
    names = (frame.name for frame in timeline.trace.stacks[stack])
    return any("empty_cache" in name or "emptyCache" in name for name in names)


def capacity_of(timeline: Timeline) -> int | None:
    """Return the most bytes that the allocator may have been able to hold; None where the driver never refused any.

    A refusal bounds it from above: by what was held plus what was asked for, or what an ``oom`` event says was free.
    """
    trace = timeline.trace
    bounds = [
        timeline.reserved_bytes_at(release.event - 1) + int(trace.size[release.end]) - 1
        for release in releases_of(timeline)
        if release.refused and trace.action[release.end] in TAKEN
    ]
    failed = np.flatnonzero(trace.action == Action.OOM).tolist()
    bounds += [int(timeline.reserved[event]) + int(trace.address[event]) for event in failed]
    return min(bounds, default=None)


class Incident(NamedTuple):
    """A request that failed, memory given back, or a retry after that."""

    event: int
    kind: Literal["oom", "retry", "flush"]
    """``retry``: the driver refused memory, and cached segments were given back for it; ``flush``: the program gave
    them back."""
    bytes: int
    """Bytes that were asked for, or given back."""


def incidents_of(timeline: Timeline) -> tuple[Incident, ...]:
    """Return the incidents of a recording, in order."""
    trace = timeline.trace
    given_back = np.where(np.isin(trace.action, GIVEN_BACK), trace.size, 0)
    found = [
        Incident(event, "oom", int(trace.size[event])) for event in np.flatnonzero(trace.action == Action.OOM).tolist()
    ]
    for release in releases_of(timeline):
        size = int(given_back[release.event : release.end].sum())
        found.append(Incident(release.event, "retry" if release.refused else "flush", size))
    return tuple(sorted(found))
