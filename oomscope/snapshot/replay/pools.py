"""Which memory pool the blocks and events of a recording belong to: the default one, a CUDA graph's or a MemPool's.

From torch of 2026 on every event names its pool. In older files only the segments do that stand at the end: a block
that lies in one of them, in memory not given back since, is of that segment's pool. What was given back counts as the
default pool's, because a private pool gives nothing back while it is in use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from oomscope.snapshot.lifetimes import BEFORE, Indices, active_blocks
from oomscope.snapshot.timeline import Timeline
from oomscope.snapshot.trace import Action, Segment

PoolId: TypeAlias = tuple[int, int]
DEFAULT_POOL: Final[PoolId] = (0, 0)
TAKEN: Final = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
GIVEN_BACK: Final = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)


_KNOWN: WeakKeyDictionary[Timeline, Pools] = WeakKeyDictionary()
"""What was found of timelines that are still in use: requests, initial state and fidelity ask for the same."""


@dataclass(frozen=True, kw_only=True)
class Pools:
    """The pools of a recording, as numbers: positions in ``ids``, where the default pool is the first."""

    of_block: Indices
    """Of each row of the lifetimes."""
    of_event: Indices
    """Of each event that allocates, fails, or deals with the driver."""
    ids: tuple[PoolId, ...] = (DEFAULT_POOL,)
    are_named: bool = False
    """The events name their pools; else those of failed requests are unknown, and so is when a pool was given up."""
    taken_for_default: int = 0
    """Blocks that count as the default pool's because their memory was given back since."""
    with_allocator: tuple[int, ...] = ()
    """Pools that take segments of cudaMalloc where the default pool takes expandable ones: an allocator of their own
    serves them (``MemPool(allocator)``)."""

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
        doubts = ["private pools count as in use to the end, since the events do not name their pools"]
        if self.taken_for_default:
            doubts.append(f"{self.taken_for_default} blocks in memory given back since count as the default pool's")
        return tuple(doubts)


def pools_of(timeline: Timeline) -> Pools:
    """Return the pools of a device's recording, which are looked for once."""
    known = _KNOWN.get(timeline)
    if known is None:
        known = _KNOWN[timeline] = _found(timeline)
    return known


def _found(timeline: Timeline) -> Pools:
    trace, table, segments = timeline.trace, timeline.lifetimes, timeline.segments or ()
    ids = tuple(dict.fromkeys((DEFAULT_POOL, *trace.pools, *(segment.pool_id for segment in segments))))
    if len(ids) == 1:
        nothing = np.zeros(len(trace), dtype=np.int64)
        return Pools(of_block=np.zeros(len(table), dtype=np.int64), of_event=nothing, are_named=trace.names_pools)
    if trace.names_pools:
        numbers = np.array([ids.index(pool) for pool in trace.pools], dtype=np.int64)
        of_event = numbers[trace.pool_id]
        of_block, unknown = _of_blocks_by_events(timeline, of_event, ids), 0
    else:
        final = _Final(timeline, segments, ids)
        of_event = np.zeros(len(trace), dtype=np.int64)
        taken = np.flatnonzero(np.isin(trace.action, TAKEN))
        of_event[taken] = final.pools(trace.address[taken], taken)
        of_block = final.pools(table.address, table.born)
        unknown = int((of_block < 0).sum())
        of_block, of_event = np.maximum(of_block, 0), np.maximum(of_event, 0)
        born = table.born > BEFORE
        of_event[table.born[born]] = of_block[born]
    return Pools(
        of_block=of_block,
        of_event=of_event,
        ids=ids,
        are_named=trace.names_pools,
        taken_for_default=unknown,
        with_allocator=_with_allocator(segments, ids),
    )


def _of_blocks_by_events(timeline: Timeline, of_event: Indices, ids: tuple[PoolId, ...]) -> Indices:
    """Return the pool that the event names which allocated a block, or gave it up, or that its final segment has."""
    table, segments = timeline.lifetimes, timeline.segments or ()
    event = np.where(table.born > BEFORE, table.born, np.where(table.freed > BEFORE, table.freed, table.completed))
    seen = event < len(timeline.trace)
    of_block = np.zeros(len(table), dtype=np.int64)
    of_block[seen] = of_event[event[seen]]
    older = np.flatnonzero(~seen & (table.segment_block >= 0))
    if len(older):
        of_position = np.array([ids.index(segments[each.segment].pool_id) for each in active_blocks(segments)])
        of_block[older] = of_position[table.segment_block[older]]
    return of_block


class _Final:
    """The segments at the end, and since when each address has been theirs."""

    def __init__(self, timeline: Timeline, segments: tuple[Segment, ...], ids: tuple[PoolId, ...]) -> None:
        standing = sorted(segments, key=lambda segment: segment.address)
        self._starts = np.array([segment.address for segment in standing], dtype=np.uint64)
        self._ends = np.array([segment.address + segment.total_size for segment in standing], dtype=np.uint64)
        self._pools = np.array([ids.index(segment.pool_id) for segment in standing], dtype=np.int64)
        trace = timeline.trace
        self._given_back = np.flatnonzero(np.isin(trace.action, GIVEN_BACK))
        self._from = trace.address[self._given_back]
        self._to = self._from + trace.size[self._given_back].astype(np.uint64)

    def pools(self, address: NDArray[np.uint64], since: Indices) -> Indices:
        """Return the pool of each address, or -1 where it lies in no final segment or was given back since."""
        if not len(self._starts):
            return np.full(len(address), -1, dtype=np.int64)
        place = np.searchsorted(self._starts, address, side="right") - 1
        inside = (place >= 0) & (address < self._ends[place])
        stays = self._last_given_back(address) < since
        return np.where(inside & stays, self._pools[place], -1)

    def _last_given_back(self, address: NDArray[np.uint64]) -> Indices:
        """Return the last event that gave each address back; -2 where none did."""
        order = np.argsort(address, kind="stable")
        ordered = address[order]
        last = np.full(len(address), BEFORE - 1, dtype=np.int64)
        first, beyond = np.searchsorted(ordered, self._from), np.searchsorted(ordered, self._to)
        for event, low, high in zip(self._given_back.tolist(), first.tolist(), beyond.tolist(), strict=True):
            last[low:high] = event
        result = np.empty_like(last)
        result[order] = last
        return result


def _with_allocator(segments: tuple[Segment, ...], ids: tuple[PoolId, ...]) -> tuple[int, ...]:
    if not any(segment.is_expandable for segment in segments if segment.pool_id == DEFAULT_POOL):
        return ()
    expands: dict[PoolId, bool] = {}
    for segment in segments:
        expands[segment.pool_id] = expands.get(segment.pool_id, False) or segment.is_expandable
    return tuple(number for number, pool in enumerate(ids) if number and not expands.get(pool, True))
