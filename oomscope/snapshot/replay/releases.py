"""Memory given back to the driver: asked for by the program (``empty_cache``), or the price of a request that failed.

The events are the same. A call of ``empty_cache`` is a request like any other, and made again whatever the settings;
what a failed request released shows how much the device had to give, and is not repeated where there is more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from oomscope.snapshot.timeline import Timeline
from oomscope.snapshot.trace import REMARKS, Action

_GIVEN_BACK: Final = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)
_TAKEN: Final = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
_OOM: Final = 1
_MORE: Final = 2
"""What a release ends in, where it may be the price of a request: its failure, or memory taken from the driver."""


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
    judge = _Judge(timeline)
    spoken = np.flatnonzero(~np.isin(trace.action, REMARKS))
    gives_back = np.isin(trace.action[spoken], _GIVEN_BACK)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], gives_back, [False]]).astype(np.int8)))
    releases = []
    for first, beyond in edges.reshape(-1, 2).tolist():
        event = int(spoken[first])
        end = int(spoken[beyond]) if beyond < len(spoken) else len(trace)
        releases.append(Release(event=event, end=end, refused=judge.was_refused(event, end)))
    return tuple(releases)


def capacity_of(timeline: Timeline, releases: tuple[Release, ...]) -> int | None:
    """Return the most bytes that the allocator may have been able to hold; None where the driver never refused any.

    A refusal bounds it from above: by what was held plus what was asked for, or by what
    was free, where an ``oom`` event tells.
    """
    trace = timeline.trace
    takes = np.isin(trace.action, _TAKEN)
    bounds = [
        _reserved_before(timeline, release.event) + int(trace.size[release.end]) - 1
        for release in releases
        if release.refused and takes[release.end]
    ]
    bounds += [
        int(timeline.reserved[event]) + free
        for event in np.flatnonzero(trace.action == Action.OOM).tolist()
        if (free := trace.device_free(event)) is not None
    ]
    return min(bounds, default=None)


class _Judge:
    """Tells refusals from calls of ``empty_cache``; what it looks at again and again it keeps at hand."""

    def __init__(self, timeline: Timeline) -> None:
        trace = timeline.trace
        self._timeline = timeline
        self._ends_in = np.select([trace.action == Action.OOM, np.isin(trace.action, _TAKEN)], [_OOM, _MORE]).tolist()
        self._stack_id: list[int] = trace.stack_id.tolist()
        self._most = int(timeline.reserved.max(initial=timeline.initial_reserved_bytes))
        self._calls: dict[int, bool] = {}

    def was_refused(self, event: int, end: int) -> bool:
        """Say whether what was given back from ``event`` on, to before ``end``, was the price of a failed request."""
        if end == len(self._ends_in) or not self._ends_in[end]:
            return False
        own, following = self._stack_id[event], self._stack_id[end]
        if own and self._is_empty_cache(own):
            return False
        if self._ends_in[end] == _OOM:
            return True
        if own and following and own != following:
            return False
        return _reserved_before(self._timeline, event) + int(self._timeline.trace.size[end]) > self._most

    def _is_empty_cache(self, stack: int) -> bool:
        """Say whether a stack holds torch's ``empty_cache``, under its Python or its C++ name."""
        if stack not in self._calls:
            names = [frame.name for frame in self._timeline.trace.stacks[stack]]
            self._calls[stack] = any("empty_cache" in name or "emptyCache" in name for name in names)
        return self._calls[stack]


def _reserved_before(timeline: Timeline, event: int) -> int:
    if event > 0:
        return int(timeline.reserved[event - 1])
    return timeline.initial_reserved_bytes
