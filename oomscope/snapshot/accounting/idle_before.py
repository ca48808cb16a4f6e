"""Segments from before a recording that it never uses: they show that more was in use before, which no event tells."""

from __future__ import annotations

from typing import Final

import numpy as np

from oomscope.allocator.engine.constants import LARGE_SEGMENT_DEFAULT
from oomscope.snapshot.accounting.timeline import Timeline, once
from oomscope.snapshot.trace import DEFAULT_POOL, HIGHEST_ADDRESS, Action

LEAST_SHARE: Final = 0.05
"""Share of what was reserved before that must be idle to tell of a higher peak; fragmentation leaves some as well."""
_TAKEN: Final = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
_GIVEN_BACK: Final = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)


@once
def idle_before(timeline: Timeline) -> int:
    """Return the bytes reserved before the first event in which no block of the recording lies.

    Whole segments count, and pieces of 20 MiB or more, but none of private pools, which a replayed CUDA graph uses
    without an event. 0 where they are too few to tell of a peak, where nothing is allocated, so that the file shows no
    use at all, and where the segments are of another moment than the events.
    """
    trace, table = timeline.trace, timeline.lifetimes
    if not (trace.action == Action.ALLOC).any() or timeline.requested.max() > timeline.reserved_peak().reserved_bytes:
        return 0
    segments = [segment for segment in timeline.segments or () if segment.pool_id == DEFAULT_POOL]
    if max(trace.address.max(), table.address.max(), *(segment.address for segment in segments), 0) > HIGHEST_ADDRESS:
        return 0
    address, size = trace.address.astype(np.int64), trace.size
    taken, given_back = (np.isin(trace.action, actions) for actions in (_TAKEN, _GIVEN_BACK))
    starts = np.concatenate([table.address.astype(np.int64), address[taken]])
    order = np.argsort(starts, kind="stable")
    ends = np.maximum.accumulate((starts + np.concatenate([table.size, size[taken]]))[order])
    starts = starts[order]
    held = {(start, start + length) for start, length in zip(address[given_back], size[given_back], strict=True)}
    held |= {(segment.address, segment.address + segment.total_size) for segment in segments}
    idle = 0
    for start, end in held:
        first, beyond = np.searchsorted(ends, start, side="right"), np.searchsorted(starts, end)
        gaps = np.append(starts[first:beyond], end) - np.insert(ends[first:beyond], 0, start)
        idle += int(gaps[gaps >= min(LARGE_SEGMENT_DEFAULT, end - start)].sum())
    return idle if idle > max(LARGE_SEGMENT_DEFAULT, LEAST_SHARE * timeline.initial_reserved_bytes) else 0
