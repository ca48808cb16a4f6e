"""Pair the events of a trace into block lifetimes: born, freed by the program, returned to the pool.

The start of a recording is no clean slate. A block that the trace only ever frees, or that stands in the final
segments without having been allocated in the trace, was alive before the first event, so what was live then is
recovered and requested bytes are exact at every event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from oomscope.snapshot.trace import Action, Block, Segment, Trace

BEFORE: Final = -1
"""Birth of a block that was alive before the trace began."""

Indices = NDArray[np.int64]
Columns: TypeAlias = dict[str, NDArray[Any]]


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
    """Position in :func:`active_blocks` of a block that the final segments hold; else -1."""
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


def bytes_by(group: NDArray[np.integer], size: Indices, groups: int) -> Indices:
    """Return the bytes of each group of blocks, exactly: sums of float64, as of ``bincount``, end at 2^53."""
    totals = np.zeros(groups, dtype=np.int64)
    np.add.at(totals, group, size)
    return totals


def summed_over_time(enter: Indices, leave: Indices, amount: Indices, length: int) -> Indices:
    """Return at each of ``length`` moments the sum of what has entered and not yet left."""
    change = np.zeros(length + 1, dtype=np.int64)
    np.add.at(change, np.clip(enter, 0, length), amount)
    np.subtract.at(change, np.clip(leave, 0, length), amount)
    return np.cumsum(change)[:length]


def active_blocks(segments: Sequence[Segment]) -> tuple[tuple[Segment, Block], ...]:
    """Return the blocks in use, or pending on a stream, each with its segment, in the order of the segments."""
    return tuple((segment, block) for segment in segments for block in segment.blocks if block.state != "inactive")


def pair(trace: Trace, segments: Sequence[Segment] = ()) -> Lifetimes:
    """Return the lifetimes of all blocks of a device's ``trace``; ``segments`` are its own when the trace ended."""
    end = len(trace)
    active = active_blocks(segments)
    blocks = [block for _, block in active]
    columns, inconsistent = _tenancies(trace)
    position = _match_final_blocks(columns, end, blocks)
    older, later = _before_or_after(trace, blocks, np.setdiff1d(np.arange(len(blocks)), position))
    before = [active[index] for index in older.tolist()]
    of_older = {
        "born": [BEFORE] * len(before),
        "freed": [end if block.state == "active_allocated" else BEFORE for _, block in before],
        "completed": [end] * len(before),
        "address": [block.address for _, block in before],
        "size": [block.requested_size for _, block in before],
        "stream": [segment.stream for segment, _ in before],
        "segment_block": older,
    }
    columns["segment_block"] = position
    joined: dict[str, Any] = {
        name: np.concatenate([column, np.array(of_older[name], dtype=column.dtype)]) for name, column in columns.items()
    }
    return Lifetimes(end=end, **joined, inconsistent_events=inconsistent, later=later)


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


def _before_or_after(trace: Trace, blocks: Sequence[Block], positions: Indices) -> tuple[Indices, Indices]:
    """Split the final blocks that no event allocates into those there before the trace and those that came after it.

    A block that was there all the time keeps others away, so one whose place the trace names is no such block: its
    segments were taken later than the trace, or its allocation was not recorded.
    """
    events = np.flatnonzero(np.isin(trace.action, _OF_MEMORY) & (trace.size > 0))
    starts = np.sort(trace.address[events])
    ends = np.sort(trace.address[events] + trace.size[events].astype(np.uint64))
    address = np.array([blocks[position].address for position in positions], dtype=np.uint64)
    size = np.array([max(1, blocks[position].requested_size) for position in positions], dtype=np.uint64)
    named = np.searchsorted(starts, address + size, side="left") > np.searchsorted(ends, address, side="right")
    return positions[~named], positions[named]


def _match_final_blocks(columns: Columns, end: int, blocks: Sequence[Block]) -> Indices:
    """Return for each tenancy the final block that it still occupies, or -1."""
    position = np.full(len(columns["born"]), -1, dtype=np.int64)
    lasting = np.flatnonzero(columns["completed"] == end)
    row_at = dict(zip(columns["address"][lasting].tolist(), lasting.tolist(), strict=True))
    for index, block in enumerate(blocks):
        row = row_at.get(block.address)
        if row is not None:
            position[row] = index
    return position


def _tenancies(trace: Trace) -> tuple[Columns, Indices]:
    """Return the blocks that events show, and the events that contradict the others.

    By address, events are cut into tenancies, each ``alloc free_requested free_completed`` or a part of that.
    The first tenancy of an address may lack its beginning, the last one its end. A completion without a request tells
    that the block was pending when the trace began, unless the trace records no requests to free at all. A tenancy
    that lacks a part in between contradicts the others: it counts from, or to, the nearest event that is there.
    """
    end = len(trace)
    event = np.flatnonzero(np.isin(trace.action, (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED)))
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
    tenancy = np.cumsum(opens_tenancy) - 1
    head, opens_address = event[opens_tenancy], opens_address[opens_tenancy]
    born, freed, completed = (np.full(len(head), end, dtype=np.int64) for _ in range(3))
    for kind, column in ((Action.ALLOC, born), (Action.FREE_REQUESTED, freed), (Action.FREE_COMPLETED, completed)):
        column[tenancy[action == kind]] = event[action == kind]

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
    columns = {
        "born": born,
        "freed": freed,
        "completed": completed,
        "address": trace.address[head],
        "size": trace.size[head],
        "stream": trace.stream[head],
    }
    return columns, np.sort(np.concatenate([head[unexplained], next_head[superseded]]))
