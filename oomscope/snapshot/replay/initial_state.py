"""What the allocator held when a recording began: its segments, the blocks then alive, and what lay cached between.

The blocks stand at their recorded addresses. The size of one that was freed during the trace follows from its request
by the rounding rules, save for an end not worth splitting off, which shows only where a neighbour began.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from oomscope.allocator import AllocatorBlock, AllocatorSegment, AllocatorSettings, AllocatorState, Driver, Held
from oomscope.allocator.engine.constants import SMALL_SIZE
from oomscope.snapshot.accounting.lifetimes import BEFORE, active_blocks
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.replay.ascend import sizes_asked
from oomscope.snapshot.replay.initial_memory import InitialMemory, Owner
from oomscope.snapshot.replay.pools import PoolId, pools_of
from oomscope.snapshot.trace import DEFAULT_POOL, HIGHEST_ADDRESS


class Reservation(NamedTuple):
    """A range of addresses that the driver reserved for an expandable segment."""

    base: int
    segment_type: str
    """Type of the segment, ``small`` or ``large``, which decides the size of its pages."""


@dataclass(frozen=True, kw_only=True)
class InitialState:
    """The allocator right before the first event."""

    held: Held | None
    """Segments and blocks, whose ids are rows of the lifetimes; None where they cannot be known."""
    doubts: tuple[str, ...] = ()
    """Assumptions in the state, or why it is unknown, for people."""
    reservations: tuple[Reservation, ...] = ()
    """Address ranges of expandable segments that were reserved during the trace, in order."""
    pool_ids: tuple[PoolId, ...] = (DEFAULT_POOL,)
    """The pools that the segments number."""


def recover(timeline: Timeline, settings: AllocatorSettings) -> InitialState:
    """Return what the allocator held before the first event of ``timeline``; the recorded ``settings`` round sizes.

    Blocks that were freed, but still pending on a stream, are allocated in it: their free is the first request.
    """
    if timeline.segments is None:
        doubt = "the segments at the end are unknown"
        return InitialState(held=None, doubts=(doubt,) if timeline.initial_requested_bytes else ())
    pools = pools_of(timeline)
    memory = InitialMemory(timeline, pools)
    layout = _Layout(timeline, memory, settings)
    ends = sorted((segment.address, segment.address + segment.total_size) for segment in layout.segments)
    doubts = {
        f"{memory.contradictions} segment events contradict the segments at the end": memory.contradictions,
        "segments from before the recording overlap": any(end > start for (_, end), (start, _) in pairwise(ends)),
        "segments lie at addresses that no device has": bool(ends) and ends[-1][1] > HIGHEST_ADDRESS,
        f"{layout.astray} blocks from before the recording lie in no known segment": layout.astray,
    }
    if contradiction := next((doubt for doubt, holds in doubts.items() if holds), None):
        return InitialState(held=None, doubts=(contradiction,))
    return InitialState(
        held=layout.held(),
        doubts=tuple(layout.doubts()),
        reservations=tuple(Reservation(base, owner.segment_type) for base, owner in memory.reserved),
        pool_ids=pools.ids,
    )


class _Layout:
    """The blocks from before the trace, laid into the memory of then."""

    def __init__(self, timeline: Timeline, memory: InitialMemory, settings: AllocatorSettings) -> None:
        table = timeline.lifetimes
        rows = np.flatnonzero((table.born == BEFORE) & (table.completed > BEFORE))
        rows = rows[np.argsort(table.address[rows], kind="stable")]
        self._addresses: list[int] = table.address[rows].tolist()
        self._rows: list[int] = rows.tolist()
        self._sizes = _Sizes(timeline, settings)
        self._placed = 0
        ranges = [
            (owner, start, start + size, number, start)
            for number, (start, (size, owner)) in enumerate(sorted(memory.segments.items()))
        ]
        for number, (owner, mapped) in enumerate(memory.mapped.items(), start=len(ranges)):
            ranges += ((owner, start, end, number, memory.bases[owner]) for start, end in mapped)
        self.segments = [self._segment(*each) for each in ranges]

    @property
    def astray(self) -> int:
        """Blocks outside all segments."""
        return len(self._rows) - self._placed

    def held(self) -> Held:
        """Return the segments, and the row of each block."""
        return Held(segments=self.segments, ids=dict(zip(self._addresses, self._rows, strict=True)))

    def doubts(self) -> Iterator[str]:
        """Yield what was assumed."""
        if self._sizes.clipped:
            yield f"{self._sizes.clipped} blocks from before the recording are smaller than these settings round"
        if self._sizes.open_ends:
            yield f"up to 1 MiB behind {self._sizes.open_ends} blocks from before the recording may not have been free"

    def _segment(self, owner: Owner, start: int, end: int, number: int, base: int) -> AllocatorSegment:
        return AllocatorSegment(
            address=start,
            total_size=end - start,
            stream=owner.stream,
            segment_type=owner.segment_type,
            is_expandable=owner.is_expandable,
            range=number,
            offset=start - base,
            blocks=tuple(self._blocks(owner, start, end)),
            pool=owner.pool,
        )

    def _blocks(self, owner: Owner, start: int, end: int) -> Iterator[AllocatorBlock]:
        """Yield the blocks of a segment, those that were free included."""
        first, beyond = bisect_left(self._addresses, start), bisect_left(self._addresses, end)
        self._placed += beyond - first
        at = start
        for index in range(first, beyond):
            address = self._addresses[index]
            limit = self._addresses[index + 1] if index + 1 < beyond else end
            if at < address:
                yield AllocatorBlock(at, address - at, 0, "inactive")
            size, requested = self._sizes.of(owner, self._rows[index], limit - address)
            yield AllocatorBlock(address, size, requested, "active_allocated")
            at = address + size
        if at < end:
            yield AllocatorBlock(at, end - at, 0, "inactive")


class _Sizes:
    """How many bytes the blocks from before the trace occupied."""

    def __init__(self, timeline: Timeline, settings: AllocatorSettings) -> None:
        self._table = table = timeline.lifetimes
        self._max_split = settings.max_split_size
        self._asked = sizes_asked(timeline)
        self._rounded: Callable[[int], int] = AllocatorState(settings, Driver(total_bytes=1)).round_size
        self.clipped = 0
        """Blocks for whose rounded size there was no room."""
        self.open_ends = 0
        """Blocks whose end is not recorded."""
        occupied = [block.size for _, block in active_blocks(timeline.segments or ())]
        final = np.flatnonzero(table.segment_block >= 0)
        self._final = {row: occupied[table.segment_block[row]] for row in final.tolist()}
        """Occupied bytes of the blocks that stand in the final segments."""
        later = np.flatnonzero(table.born > BEFORE)
        self._born = later[np.argsort(table.address[later], kind="stable")]
        """The blocks allocated during the trace, by address."""
        self._born_at = table.address[self._born]

    def of(self, owner: Owner, row: int, room: int) -> tuple[int, int]:
        """Return the occupied and the requested bytes of a block with ``room`` bytes up to the next one.

        In the large pool of cudaMalloc an end of up to 1 MiB is not split off, nor anything from ``max_split_size`` on
        (``should_split`` of c10/cuda/CUDACachingAllocator.cpp).
        """
        requested = int(self._table.size[row])
        rounded = self._rounded(int(self._asked[row]))
        if row in self._final:
            return min(max(self._final[row], rounded), room), requested
        if rounded > room:
            self.clipped += 1
            return room, requested
        if rounded == room or owner.segment_type == "small" or owner.is_expandable:
            return rounded, requested
        if room - rounded <= SMALL_SIZE or rounded >= self._max_split:
            return room, requested
        return self._up_to_neighbour(row, rounded), requested

    def _up_to_neighbour(self, row: int, rounded: int) -> int:
        """Return the size of a block by where the first block behind it began while it was alive."""
        table = self._table
        address = int(table.address[row])
        behind = np.array([address + rounded, address + rounded + SMALL_SIZE], dtype=np.uint64)
        first, beyond = np.searchsorted(self._born_at, behind, side="left").tolist()
        near = self._born[first : beyond + 1]
        alive = near[(table.born[near] < table.completed[row]) & (table.address[near] <= behind[1])]
        if not len(alive):
            self.open_ends += 1
            return rounded
        return int(table.address[alive[0]]) - address
