"""Pair the events of a trace into block lifetimes: born, freed by the program, returned to the pool.

The start of a recording is no clean slate. A block that the trace only ever frees, or that stands in the final
segments without having been allocated in the trace, was alive before the first event, so what was live then is
recovered and requested bytes are exact at every event.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oomscope.snapshot.trace import Action, Segment, Trace

BEFORE: Final = -1
"""Birth of a block that was alive before the trace began."""

Indices = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Lifetimes:
    """One row a block, in columns; events are indices into the trace and ``end`` means "not before the trace ended"."""

    end: int
    """Number of events of the trace."""
    born: Indices
    """The alloc event, or :data:`BEFORE`."""
    freed: Indices
    """The event at which the program gave the block up (:data:`BEFORE`: already before the trace), or ``end``."""
    completed: Indices
    """The event at which the block went back to its pool (later than ``freed`` where a stream still used it)."""
    address: NDArray[np.uint64]
    size: NDArray[np.int64]
    """Requested bytes."""
    stream: NDArray[np.int64]
    segment_block: Indices
    """For a block that the final segments hold: its position in :func:`active_blocks`; else -1."""
    inconsistent_events: Indices
    """Events that contradict the others: a free of what is not allocated, an alloc of what is."""
    later: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Positions in :func:`active_blocks` of final blocks that came after the trace; no row stands for them."""

    def __len__(self) -> int:
        return len(self.born)

    def requested_at(self, event: int) -> Indices:
        """Return the rows of blocks that the program holds, or a stream still uses, right after ``event``."""
        return np.flatnonzero((self.born <= event) & (self.completed > event))

    def held_at(self, event: int) -> Indices:
        """Return the rows of blocks that the program holds right after ``event``."""
        return np.flatnonzero((self.born <= event) & (self.freed > event))

    def pending_at(self, event: int) -> Indices:
        """Return the rows of blocks that are freed but still wait for a stream right after ``event``."""
        return np.flatnonzero((self.freed <= event) & (self.completed > event))


@dataclass(frozen=True, kw_only=True)
class ActiveBlock:
    """An active block of the final segments, with its segment."""

    segment: int
    block: int
    address: int
    requested_size: int
    stream: int
    pending: bool


def bytes_by(group: NDArray[np.integer], size: Indices, groups: int) -> Indices:
    """Return the bytes of each of ``groups`` groups, exactly: sums of float64, as of ``bincount``, end at 2^53.

    Args:
        group: of each block the number of its group.
        size: of each block the bytes.
        groups: how many there are.
    """
    totals = np.zeros(groups, dtype=np.int64)
    np.add.at(totals, group, size)
    return totals


def active_blocks(segments: Sequence[Segment]) -> tuple[ActiveBlock, ...]:
    """Return the blocks in use, or pending on a stream, in the order of the segments."""
    return tuple(
        ActiveBlock(
            segment=segment_index,
            block=block_index,
            address=block.address,
            requested_size=block.requested_size,
            stream=segment.stream,
            pending=block.state != "active_allocated",
        )
        for segment_index, segment in enumerate(segments)
        for block_index, block in enumerate(segment.blocks)
        if block.state != "inactive"
    )


def pair(trace: Trace, segments: Sequence[Segment] = ()) -> Lifetimes:
    """Return the lifetimes of all blocks of ``trace``.

    Args:
        trace: one device's events.
        segments: the same device's segments as they stood when the trace ended.
    """
    end = len(trace)
    tenancies = _tenancies(trace)
    blocks = active_blocks(segments)
    position = _match_final_blocks(tenancies, blocks)
    older, later = _before_or_after(trace, blocks, np.setdiff1d(np.arange(len(blocks)), position))
    pending = np.array([blocks[index].pending for index in older], dtype=bool)
    return Lifetimes(
        end=end,
        born=np.concatenate([tenancies.born, np.full(len(older), BEFORE)]),
        freed=np.concatenate([tenancies.freed, np.where(pending, BEFORE, end)]),
        completed=np.concatenate([tenancies.completed, np.full(len(older), end)]),
        address=np.concatenate(
            [tenancies.address, np.array([blocks[index].address for index in older], dtype=np.uint64)]
        ),
        size=np.concatenate(
            [tenancies.size, np.array([blocks[index].requested_size for index in older], dtype=np.int64)]
        ),
        stream=np.concatenate([tenancies.stream, np.array([blocks[index].stream for index in older], dtype=np.int64)]),
        segment_block=np.concatenate([position, older]),
        inconsistent_events=tenancies.inconsistent_events,
        later=later,
    )


_OF_MEMORY: Final = (
    Action.ALLOC,
    Action.FREE_REQUESTED,
    Action.FREE_COMPLETED,
    Action.SEGMENT_ALLOC,
    Action.SEGMENT_FREE,
    Action.SEGMENT_MAP,
    Action.SEGMENT_UNMAP,
)
"""Events whose address and size name device memory."""


def last_use(trace: Trace, address: NDArray[np.uint64], size: NDArray[np.int64]) -> Indices:
    """Return for each block the last event that names any byte of it, or -1.

    Args:
        trace: one device's events.
        address: where the blocks begin; they do not overlap.
        size: their bytes.
    """
    events = np.flatnonzero(np.isin(trace.action, _OF_MEMORY))
    order = np.argsort(address)
    starts, ends = address[order], address[order] + size[order].astype(np.uint64)
    first = np.searchsorted(ends, trace.address[events], side="right")
    behind = np.searchsorted(starts, trace.address[events] + trace.size[events].astype(np.uint64), side="left")
    last = np.full(len(order), -1, dtype=np.int64)
    unnamed = _Unvisited(len(order))
    for index in np.flatnonzero(first < behind)[::-1].tolist():
        for place in unnamed.visit(int(first[index]), int(behind[index])):
            last[place] = events[index]
    result = np.empty_like(last)
    result[order] = last
    return result


class _Unvisited:
    """Places of which each is visited once, however often a range that holds it is (a forest with path halving)."""

    def __init__(self, count: int) -> None:
        self._next = list(range(count + 1))

    def visit(self, start: int, end: int) -> Iterator[int]:
        """Yield the places from ``start`` to before ``end`` that were not visited yet."""
        place = self._first_from(start)
        while place < end:
            yield place
            self._next[place] = place + 1
            place = self._first_from(place)

    def _first_from(self, place: int) -> int:
        following = self._next
        while following[place] != place:
            following[place] = following[following[place]]
            place = following[place]
        return place


def _before_or_after(trace: Trace, blocks: Sequence[ActiveBlock], positions: Indices) -> tuple[Indices, Indices]:
    """Tell the final blocks that no event allocates: those there before the trace, and those that came after it.

    A block that was there all the time keeps others away, so one whose place the trace names is no such block: its
    segments were taken later than the trace, or its allocation was not recorded.
    """
    address = np.array([blocks[position].address for position in positions], dtype=np.uint64)
    size = np.array([max(1, blocks[position].requested_size) for position in positions], dtype=np.int64)
    unnamed = last_use(trace, address, size) < 0
    return positions[unnamed], positions[~unnamed]


def _match_final_blocks(tenancies: Lifetimes, blocks: Sequence[ActiveBlock]) -> Indices:
    """Return for each tenancy the final block that it still occupies, or -1."""
    position = np.full(len(tenancies), -1, dtype=np.int64)
    lasting = np.flatnonzero(tenancies.completed == tenancies.end)
    row_at = dict(zip(tenancies.address[lasting].tolist(), lasting.tolist(), strict=True))
    for index, block in enumerate(blocks):
        row = row_at.get(block.address)
        if row is not None:
            position[row] = index
    return position


class _Runs(NamedTuple):
    """The block events of a trace, address by address, in time; each address's run is cut into tenancies."""

    event: Indices
    action: NDArray[np.int8]
    opens_address: NDArray[np.bool_]
    """The event is the first one of its address."""
    opens_tenancy: NDArray[np.bool_]

    def events_of(self, kind: Action, absent: int) -> Indices:
        """Return each tenancy's event of one kind, or ``absent``."""
        tenancy = np.cumsum(self.opens_tenancy) - 1
        result = np.full(int(self.opens_tenancy.sum()), absent, dtype=np.int64)
        chosen = self.action == kind
        result[tenancy[chosen]] = self.event[chosen]
        return result


def _runs(trace: Trace) -> _Runs:
    """Cut the events into tenancies, each ``alloc free_requested free_completed`` or a part of that."""
    is_block_event = (
        (trace.action == Action.ALLOC)
        | (trace.action == Action.FREE_REQUESTED)
        | (trace.action == Action.FREE_COMPLETED)
    )
    event = np.flatnonzero(is_block_event)
    event = event[np.argsort(trace.address[event], kind="stable")]
    action, address = trace.action[event], trace.address[event]
    opens_address = np.ones(len(event), dtype=bool)
    opens_address[1:] = address[1:] != address[:-1]
    previous = np.roll(action, 1)
    opens_tenancy = (
        opens_address
        | (action == Action.ALLOC)
        | (previous == Action.FREE_COMPLETED)
        | ((previous == Action.FREE_REQUESTED) & (action == Action.FREE_REQUESTED))
    )
    return _Runs(event, action, opens_address, opens_tenancy)


def _tenancies(trace: Trace) -> Lifetimes:
    """Return what the events alone tell.

    The first tenancy of an address may lack its beginning, the last one its end. A completion without a request tells
    that the block was pending when the trace began, unless the trace records no requests to free at all. A tenancy
    that lacks a part in between contradicts the others: it counts from, or to, the nearest event that is there.
    """
    end = len(trace)
    runs = _runs(trace)
    head, opens_address = runs.event[runs.opens_tenancy], runs.opens_address[runs.opens_tenancy]
    born = runs.events_of(Action.ALLOC, end)
    freed = runs.events_of(Action.FREE_REQUESTED, end)
    completed = runs.events_of(Action.FREE_COMPLETED, end)

    headless, unrequested = born == end, freed == end
    older, unexplained = headless & opens_address, headless & ~opens_address
    requests_are_recorded = not (unrequested & ~headless & (completed < end)).any()
    freed[unrequested] = completed[unrequested]
    born[older] = BEFORE
    if requests_are_recorded:
        freed[older & unrequested] = BEFORE
    born[unexplained] = freed[unexplained] = completed[unexplained] = head[unexplained]

    next_head = np.append(head[1:], end)
    superseded = np.append(~opens_address[1:], np.zeros(min(1, len(head)), dtype=bool)) & (completed == end)
    freed[superseded] = np.minimum(freed[superseded], next_head[superseded])
    completed[superseded] = next_head[superseded]
    return Lifetimes(
        end=end,
        born=born,
        freed=freed,
        completed=completed,
        address=trace.address[head],
        size=trace.size[head],
        stream=trace.stream[head],
        segment_block=np.full(len(head), -1, dtype=np.int64),
        inconsistent_events=np.sort(np.concatenate([head[unexplained], next_head[superseded]])),
    )
