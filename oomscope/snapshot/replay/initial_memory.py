"""The memory that the allocator held from the driver when a recording began: the final one with all events undone.

From the last event to the first, what was taken goes and what was given back returns: segments of cudaMalloc, and
mapped pages of expandable segments.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from oomscope.allocator.engine.constants import LARGE_SEGMENT_DEFAULT, SMALL_SEGMENT
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.replay.ascend import most_in_small_pool
from oomscope.snapshot.replay.pools import Pools
from oomscope.snapshot.trace import Action


class AddressRanges:
    """Half-open ranges ``[start, end)``; ranges that touch are one.

    A change finds the ranges that it touches by bisection and looks at no others; the list moves all that lie behind,
    so that very many ranges that touch nowhere and come in no order take time with their square.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._ends, strict=True)

    def __bool__(self) -> bool:
        return bool(self._starts)

    def add(self, start: int, end: int) -> bool:
        """Take a range in; return whether nothing of it was there before."""
        if start == end:
            return True
        first, beyond = bisect_left(self._ends, start), bisect_right(self._starts, end)
        touched = zip(self._starts[first:beyond], self._ends[first:beyond], strict=True)
        was_free = all(low == end or high == start for low, high in touched)
        if first < beyond:
            start, end = min(start, self._starts[first]), max(end, self._ends[beyond - 1])
        self._starts[first:beyond], self._ends[first:beyond] = [start], [end]
        return was_free

    def remove(self, start: int, end: int) -> bool:
        """Take a range out; return whether all of it was there."""
        first, beyond = bisect_right(self._ends, start), bisect_left(self._starts, end)
        touched = list(zip(self._starts[first:beyond], self._ends[first:beyond], strict=True))
        was_there = len(touched) == 1 and touched[0][0] <= start and end <= touched[0][1]
        pieces = [piece for low, high in touched for piece in ((low, min(high, start)), (max(low, end), high))]
        left = [(low, high) for low, high in pieces if low < high]
        self._starts[first:beyond] = [low for low, _ in left]
        self._ends[first:beyond] = [high for _, high in left]
        return was_there


SEGMENT_ACTIONS = (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE, Action.SEGMENT_MAP, Action.SEGMENT_UNMAP)
"""Actions that take memory from the driver or give it back."""


class Owner(NamedTuple):
    """Owner of a range of memory; no two owners share a segment or a reservation."""

    stream: int
    segment_type: str
    is_expandable: bool
    pool: int = 0
    """Number of the memory pool."""


class InitialMemory:
    """Segments and mapped pages before the first event."""

    def __init__(self, timeline: Timeline, pools: Pools) -> None:
        self.segments: dict[int, tuple[int, Owner]] = {}
        """Size and owner of each segment of cudaMalloc, by address."""
        self.mapped: dict[Owner, AddressRanges] = {}
        """Pages of expandable segments."""
        self.bases: dict[Owner, int] = {}
        """Lowest address mapped in each reservation of these pages: its start, unless lower pages were never mapped."""
        self.reserved: list[tuple[int, Owner]] = []
        """Starts of reservations made during the trace, in order; one is given back once nothing in it is mapped."""
        self.contradictions = 0
        """Events that the segments at the end, or other events, belie."""
        self._trace = timeline.trace
        self._pools = pools
        self._most_small = most_in_small_pool(timeline)
        order = np.argsort(timeline.lifetimes.address, kind="stable")
        self._blocks_at = timeline.lifetimes.address[order]
        self._block_sizes = timeline.lifetimes.size[order]
        self._block_pools = pools.of_block[order]
        for segment in timeline.segments or ():
            pool = pools.ids.index(segment.pool_id)
            owner = Owner(segment.stream, segment.segment_type, segment.is_expandable, pool)
            if segment.is_expandable:
                self._map(owner, segment.address, segment.address + segment.total_size)
            else:
                self.segments[segment.address] = segment.total_size, owner
        self._undo()

    def _undo(self) -> None:
        owners = self._owners_of_pages()
        for event in np.flatnonzero(np.isin(self._trace.action, SEGMENT_ACTIONS))[::-1].tolist():
            action, start, end = int(self._trace.action[event]), *self._range(event)
            if action == Action.SEGMENT_ALLOC:
                self.contradictions += self.segments.pop(start, (0, None))[0] != end - start
            elif action == Action.SEGMENT_FREE:
                self.contradictions += start in self.segments
                # The large pool takes no segments as small as those of the small pool.
                segment_type = "small" if end - start == SMALL_SEGMENT else "large"
                stream, pool = int(self._trace.stream[event]), int(self._pools.of_event[event])
                self.segments[start] = end - start, Owner(stream, segment_type, is_expandable=False, pool=pool)
            elif action == Action.SEGMENT_MAP:
                self.contradictions += not self._unmap(owners[event], start, end)
            else:
                self.contradictions += not self._map(owners[event], start, end)
        self.reserved.reverse()

    def _range(self, event: int) -> tuple[int, int]:
        start = int(self._trace.address[event])
        return start, start + int(self._trace.size[event])

    def _map(self, owner: Owner, start: int, end: int) -> bool:
        """Return whether nothing of the range was there."""
        self.bases[owner] = min(start, self.bases.get(owner, start))
        return self.mapped.setdefault(owner, AddressRanges()).add(start, end)

    def _unmap(self, owner: Owner, start: int, end: int) -> bool:
        """Return whether all of the range was there."""
        ranges = self.mapped.setdefault(owner, AddressRanges())
        was_there = ranges.remove(start, end)
        if was_there and not ranges:
            self.reserved.append((self.bases.pop(owner), owner))
        return was_there

    def _owners_of_pages(self) -> dict[int, Owner]:
        """Return whose pages each event maps or unmaps."""
        trace = self._trace
        known = _Owned()
        for owner, ranges in self.mapped.items():
            for start, end in ranges:
                known.add(start, end, owner)
        requests = np.flatnonzero((trace.action == Action.ALLOC) | (trace.action == Action.OOM))
        owners: dict[int, Owner] = {}
        for event in np.flatnonzero(trace.action == Action.SEGMENT_MAP).tolist():
            place = int(np.searchsorted(requests, event))
            served = int(trace.size[requests[place]]) if place < len(requests) else 0
            stream, pool = int(trace.stream[event]), int(self._pools.of_event[event])
            owners[event] = _expandable(stream, pool, is_small=served <= self._most_small)
            known.add(*self._range(event), owners[event])
        for event in np.flatnonzero(trace.action == Action.SEGMENT_UNMAP).tolist():
            owners[event] = self._owner_of_unmapped(event, known)
        return owners

    def _owner_of_unmapped(self, event: int, known: _Owned) -> Owner:
        """Return whose pages were unmapped: those of blocks that lay in them, of pages that touch, or of that size."""
        stream, pool = int(self._trace.stream[event]), int(self._pools.of_event[event])
        start, end = self._range(event)
        first, beyond = np.searchsorted(self._blocks_at, np.array([start, end], dtype=np.uint64)).tolist()
        if first < beyond:
            pool = pool if self._pools.are_named else int(self._block_pools[first])
            return _expandable(stream, pool, is_small=int(self._block_sizes[first]) <= self._most_small)
        touching = known.touching(start, end, stream)
        if touching is None:
            return _expandable(stream, pool, is_small=(end - start) % LARGE_SEGMENT_DEFAULT != 0)
        return touching._replace(pool=pool) if self._pools.are_named else touching


class _Owned:
    """Ranges of addresses with their owners, to be asked once all are known."""

    def __init__(self) -> None:
        self._added: dict[int, list[tuple[int, int, Owner]]] = defaultdict(list)
        self._reach: dict[int, tuple[list[int], list[tuple[int, Owner]]]] = {}

    def add(self, start: int, end: int, owner: Owner) -> None:
        """Note whose a range is."""
        self._added[owner.stream].append((start, end, owner))

    def touching(self, start: int, end: int, stream: int) -> Owner | None:
        """Return who owns the range of ``stream`` that reaches farthest among those that overlap or touch this one."""
        if stream not in self._reach:
            ranges = sorted(self._added[stream])
            farthest = accumulate(
                ((high, owner) for _, high, owner in ranges), lambda *two: max(two, key=itemgetter(0))
            )
            self._reach[stream] = [low for low, _, _ in ranges], list(farthest)
        lows, reach = self._reach[stream]
        place = bisect_right(lows, end)
        return reach[place - 1][1] if place and reach[place - 1][0] >= start else None


def _expandable(stream: int, pool: int, *, is_small: bool) -> Owner:
    return Owner(stream, "small" if is_small else "large", is_expandable=True, pool=pool)
