"""Memory given back to the driver: asked for by the program (``empty_cache``), or the price of a request that failed.

The events are the same. A call of ``empty_cache`` is a request like any other, and made again whatever the settings;
what a failed request released shows how much the device had to give, and is not repeated where there is more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from oomscope.snapshot.timeline import Timeline
from oomscope.snapshot.trace import REMARKS, Action, Trace

_GIVEN_BACK: Final = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)
_TAKEN: Final = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)


@dataclass(frozen=True, kw_only=True)
class Release:
    """Segments or pages given back one right after the other."""

    event: int
    """The first of its events."""
    end: int
    """The event that follows the last of them, which is the trace's length where none does."""
    refused: bool
    """The driver had refused a request before; else the program called ``empty_cache``."""


def releases_of(timeline: Timeline) -> tuple[Release, ...]:
    """Return the releases of a trace, in order, each with its cause.

    Only a request for more than the allocator was ever seen to hold can have been refused. The stack decides among
    those, where it is recorded: that of the request which goes on to take memory, or that of ``empty_cache``
    (``release_cached_blocks`` in c10/cuda/CUDACachingAllocator.cpp records its caller's).
    """
    trace = timeline.trace
    spoken = np.flatnonzero(~np.isin(trace.action, REMARKS))
    gives_back = np.isin(trace.action[spoken], _GIVEN_BACK)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], gives_back, [False]]).astype(np.int8)))
    releases = []
    for first, beyond in edges.reshape(-1, 2).tolist():
        event = int(spoken[first])
        end = int(spoken[beyond]) if beyond < len(spoken) else len(trace)
        releases.append(Release(event=event, end=end, refused=_was_refused(timeline, event, end)))
    return tuple(releases)


def capacity_of(timeline: Timeline, releases: tuple[Release, ...]) -> int | None:
    """Return the most bytes that the allocator may have been able to hold; None where the driver never refused any.

    A refusal bounds it from above: by what was held plus what was asked for, or by what
    was free, where an ``oom`` event tells.
    """
    trace = timeline.trace
    bounds = [
        _reserved_before(timeline, release.event) + int(trace.size[release.end]) - 1
        for release in releases
        if release.refused and trace.action[release.end] in _TAKEN
    ]
    bounds += [
        int(timeline.reserved[event]) + free
        for event in np.flatnonzero(trace.action == Action.OOM).tolist()
        if (free := trace.device_free(event)) is not None
    ]
    return min(bounds, default=None)


def _was_refused(timeline: Timeline, event: int, end: int) -> bool:
    trace = timeline.trace
    if end == len(trace) or trace.action[end] not in (*_TAKEN, Action.OOM):
        return False
    own, following = int(trace.stack_id[event]), int(trace.stack_id[end])
    if own and _is_empty_cache(trace, own):
        return False
    if trace.action[end] == Action.OOM:
        return True
    if own and following and own != following:
        return False
    return _reserved_before(timeline, event) + int(trace.size[end]) > int(timeline.reserved.max())


def _is_empty_cache(trace: Trace, stack: int) -> bool:
    """Say whether a stack holds torch's ``empty_cache``, under its Python or its C++ name."""
    names = [frame.name for frame in trace.stacks[stack]]
    return any("empty_cache" in name or "emptyCache" in name for name in names)


def _reserved_before(timeline: Timeline, event: int) -> int:
    if event > 0:
        return int(timeline.reserved[event - 1])
    return timeline.initial_reserved_bytes
