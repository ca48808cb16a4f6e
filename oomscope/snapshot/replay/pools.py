"""Which memory pool the blocks and events of a recording belong to: the default one, a CUDA graph's or a MemPool's.

From torch of 2026 on every event names its pool. In older files only the segments do that stand at the end: a block
that lies in one of them, in memory not given back since, is of that segment's pool. What was given back counts as the
default pool's, because a private pool gives nothing back while it is in use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from oomscope.snapshot.accounting.lifetimes import BEFORE, Indices, active_blocks
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.trace import DEFAULT_POOL, Action

PoolId: TypeAlias = tuple[int, int]
TAKEN: Final = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
GIVEN_BACK: Final = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)


@dataclass(frozen=True, kw_only=True)
class Pools:
    """The pools of a recording, as numbers: positions in ``ids``, where the default pool is the first."""

    of_block: Indices
    """Pool number of each row of the lifetimes."""
    of_event: Indices
    """Pool number of each event that allocates, fails, or deals with the driver."""
    ids: tuple[PoolId, ...] = (DEFAULT_POOL,)
    are_named: bool = False
    """Whether the events name their pools; else pools of failed requests, and ends of pools, are unknown."""

    @property
    def has_private(self) -> bool:
        """Whether there is any pool but the default one."""
        return len(self.ids) > 1

    @property
    def doubts(self) -> tuple[str, ...]:
        """What is assumed of private pools, for people."""
        if not self.has_private:
            return ()
        if self.are_named:
            return ("a private pool counts as in use until its segments are given back",)
        return ("private pools count as in use to the end, since the events do not name their pools",)


def pools_of(timeline: Timeline) -> Pools:
    """Return the pools of a device's recording."""
    trace, table, segments = timeline.trace, timeline.lifetimes, timeline.segments or ()
    ids = tuple(dict.fromkeys((DEFAULT_POOL, *trace.pools, *(segment.pool_id for segment in segments))))
    of_event = np.zeros(len(trace), dtype=np.int64)
    if len(ids) == 1:
        return Pools(of_block=np.zeros(len(table), dtype=np.int64), of_event=of_event, are_named=trace.names_pools)
    if trace.names_pools:
        of_event = np.array([ids.index(pool) for pool in trace.pools], dtype=np.int64)[trace.pool_id]
        of_block = _named_by_events(timeline, of_event, ids)
    else:
        taken = np.flatnonzero(np.isin(trace.action, TAKEN))
        of_event[taken] = _by_segments(timeline, ids, trace.address[taken], taken)
        of_block = _by_segments(timeline, ids, table.address, table.born)
        born = table.born > BEFORE
        of_event[table.born[born]] = of_block[born]
    return Pools(of_block=of_block, of_event=of_event, ids=ids, are_named=trace.names_pools)


def _named_by_events(timeline: Timeline, of_event: Indices, ids: tuple[PoolId, ...]) -> Indices:
    """Return the pool that the event names which allocated a block, or gave it up, or that its final segment has."""
    table = timeline.lifetimes
    event = np.where(table.born > BEFORE, table.born, np.where(table.freed > BEFORE, table.freed, table.completed))
    seen = event < len(timeline.trace)
    of_block = np.zeros(len(table), dtype=np.int64)
    of_block[seen] = of_event[event[seen]]
    older = np.flatnonzero(~seen & (table.segment_block >= 0))
    if len(older):
        of_position = np.array([ids.index(segment.pool_id) for segment, _ in active_blocks(timeline.segments or ())])
        of_block[older] = of_position[table.segment_block[older]]
    return of_block


def _by_segments(timeline: Timeline, ids: tuple[PoolId, ...], address: NDArray[np.uint64], since: Indices) -> Indices:
    """Return the pool of the final segment at each address, the default one where it was given back after ``since``."""
    trace = timeline.trace
    given_back = np.flatnonzero(np.isin(trace.action, GIVEN_BACK))
    start, end = trace.address[given_back], trace.address[given_back] + trace.size[given_back].astype(np.uint64)
    pools = np.zeros(len(address), dtype=np.int64)
    for segment in timeline.segments or ():
        low, high = np.uint64(segment.address), np.uint64(segment.address + segment.total_size)
        touching = given_back[(start < high) & (end > low)]
        if segment.pool_id != DEFAULT_POOL:
            last = touching[-1] if len(touching) else BEFORE - 1
            pools[(address >= low) & (address < high) & (since > last)] = ids.index(segment.pool_id)
    return pools
