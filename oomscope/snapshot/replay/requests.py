"""What a program asked of the allocator, without what the allocator made of it: the input of a replay.

A trace records answers (addresses, segments, when a deferred free completed). Stripped of them it is a list of
requests, each in one of the program's memory pools, that can be put to the same allocator under other settings.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from heapq import heappop, heappush
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oomscope.allocator import Held, ReplayOp
from oomscope.snapshot.accounting.lifetimes import BEFORE, Indices, Lifetimes
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.replay.ascend import sizes_asked
from oomscope.snapshot.replay.initial_state import InitialState
from oomscope.snapshot.replay.pools import GIVEN_BACK, PoolId, Pools, pools_of
from oomscope.snapshot.replay.releases import Release, releases_of
from oomscope.snapshot.trace import DEFAULT_POOL, Action, Trace


class Kind(IntEnum):
    """What is asked. The order is that within one event: what frees comes before what allocates."""

    COMPLETE = 0
    """All work recorded on the stream is done."""
    USE = 1
    """The block is used on another stream too: its free waits for that stream (``record_stream``)."""
    FREE = 2
    MALLOC = 3
    TRY = 4
    """A request that failed when recorded, and after which the program asked for more: it may fail again."""
    GIVE_BACK = 5
    """Frees what a ``TRY`` got, if it got anything."""
    RELEASE_POOL = 6
    """Nothing uses the private pool any more."""
    EMPTY_CACHE = 7
    """The program gives back to the driver all that is cached."""
    EMPTY_POOL = 8
    """What is cached of the private pool is given back to the driver, as when a ``MemPool`` dies."""


OPERATION: Final = {
    Kind.COMPLETE: ReplayOp.SYNCHRONIZE,
    Kind.USE: ReplayOp.RECORD_STREAM,
    Kind.FREE: ReplayOp.FREE,
    Kind.MALLOC: ReplayOp.MALLOC,
    Kind.TRY: ReplayOp.MALLOC,
    Kind.GIVE_BACK: ReplayOp.FREE,
    Kind.RELEASE_POOL: ReplayOp.RELEASE_POOL,
    Kind.EMPTY_CACHE: ReplayOp.EMPTY_CACHE,
    Kind.EMPTY_POOL: ReplayOp.EMPTY_POOL,
}
"""The allocator's operation for each kind."""


MAX_HANDLE: Final = 2**62
"""Largest number given to a stream that stands for a wait."""


@dataclass(frozen=True, kw_only=True)
class Requests:
    """Requests in order, in columns of equal length."""

    kind: NDArray[np.int8]
    block: Indices
    """Number of the block: its row among the lifetimes, or one beyond them for requests that failed."""
    size: NDArray[np.int64]
    """Requested bytes of ``MALLOC`` and ``TRY``."""
    stream: NDArray[np.int64]
    """The block's stream; for ``USE`` and ``COMPLETE`` the stream waited for."""
    event: Indices
    """The event of the trace that the request comes from; -1 for blocks that were there before."""
    pool: Indices
    """Number of the pool that it is made in: a position in ``pool_ids``."""
    pool_ids: tuple[PoolId, ...] = (DEFAULT_POOL,)
    pool_doubts: tuple[str, ...] = ()
    """Assumptions on private pools, for people."""
    packed_before: int = 0
    """Requests for the blocks that were alive before the recording; they come first, in the order of addresses, and
    pack them, which is not how the recorded run had them. None where ``initial`` holds these blocks."""
    initial: InitialState | None = None
    """State of the allocator before the first request; None for nothing."""
    afresh: Requests | None = None
    """These requests without an initial state."""
    addresses: tuple[tuple[int, int], ...] = ()
    """Address and size of each segment that the driver gave during the recording, in order."""

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def held(self) -> Held:
        """What the allocator holds before the first request."""
        return (self.initial and self.initial.held) or Held()

    @property
    def held_bytes(self) -> int:
        """Bytes of the segments that the allocator holds before the first request."""
        return sum(segment.total_size for segment in self.held.segments)

    @property
    def begun_afresh(self) -> Requests:
        """The same requests on an allocator that holds nothing: first those for the blocks from before."""
        return self.afresh or self

    @property
    def has_private_pools(self) -> bool:
        """Whether the program had memory pools of its own."""
        return len(self.pool_ids) > 1

    @property
    def caveats(self) -> tuple[str, ...]:
        """Differences between a replay of these requests and the recorded run, for people."""
        doubts = self.initial.doubts if self.initial else ()
        afresh = ("blocks from before the recording are repacked",) if self.packed_before else ()
        return (*doubts, *afresh, *self.pool_doubts)

    @property
    def operations(self) -> Indices:
        """The ``ReplayOp`` of each request."""
        return np.array([OPERATION[kind] for kind in Kind], dtype=np.int64)[self.kind]

    def first(self, count: int) -> Requests:
        """Return the first ``count`` requests."""
        columns = ("kind", "block", "size", "stream", "event", "pool")
        return replace(self, **{name: getattr(self, name)[:count] for name in columns})


class Last(NamedTuple):
    """The allocation with which a list of requests ends."""

    event: int
    """Index in the trace: that of the ``oom`` event, or the trace's length."""
    size: int
    """Requested bytes."""
    stream: int = 0


def requests_of(
    timeline: Timeline,
    last: Last | None = None,
    *,
    pending_at_last: bool = False,
    initial: InitialState | None = None,
) -> Requests:
    """Return the requests of a trace.

    Args:
        timeline: the trace, paired.
        last: the allocation that failed, with which the requests end; None: they end with the trace, and its last
            failure counts as one where nothing was asked for after it.
        pending_at_last: blocks freed since the allocation before that failure were still in use by a stream when it
            was asked for. The events cannot tell: a completion right before the failure comes either from the look at
            the streams with which an allocation begins, or from the wait for them when all else has failed.
        initial: what the allocator held before the first event, as
            :func:`~oomscope.snapshot.replay.initial_state.recover` found; None, or where that is unknown: the blocks
            of then are requested first.

    A free that was still pending at a later allocation becomes a use on a stream of its own, which completes where
    the trace says; so the allocator under replay may also wait for it earlier, as the real one does under pressure.
    """
    trace, table = timeline.trace, timeline.lifetimes
    end = len(trace) if last is None else last.event
    fatal = fatal_event(trace) if last is None else last.event
    pools = pools_of(timeline)
    releases = tuple(release for release in releases_of(timeline) if release.event < end)
    parts = [
        _mallocs(timeline, end, pools),
        *_frees(table, trace.action, end, pending_at=fatal if pending_at_last else None),
        *_failed_tries(timeline, end, fatal, pools),
        *_releases(timeline, releases, pools),
    ]
    if last is not None:
        asked_in = int(pools.of_event[last.event]) if last.event < len(trace) else 0
        parts.append(_column(Kind.MALLOC, [len(table)], [last.size], [last.stream], [last.event], [asked_in]))
    recorded, older = _in_order(_joined(*parts)), _older_mallocs(timeline, end, pools)
    given = trace.action == Action.SEGMENT_ALLOC
    facts: dict[str, Any] = {
        "pool_ids": pools.ids,
        "pool_doubts": pools.doubts,
        "addresses": tuple(zip(trace.address[given].tolist(), trace.size[given].tolist(), strict=True)),
    }
    afresh = Requests(**_joined(older, recorded)._asdict(), packed_before=len(older.kind), **facts)
    if initial is None or initial.held is None:
        return replace(afresh, initial=initial)
    return Requests(**recorded._asdict(), initial=initial, afresh=afresh, **facts)


def fatal_event(trace: Trace) -> int | None:
    """Return the ``oom`` event that is the last request of a trace; None where the program went on, or none failed."""
    asked = np.flatnonzero((trace.action == Action.ALLOC) | (trace.action == Action.OOM))
    return int(asked[-1]) if len(asked) and trace.action[asked[-1]] == Action.OOM else None


class Columns(NamedTuple):
    """Columns of requests, named as those of :class:`Requests` are."""

    kind: NDArray[np.int8]
    block: Indices
    size: Indices
    stream: Indices
    event: Indices
    pool: Indices


Values = Indices | list[int]


def _joined(*parts: Columns) -> Columns:
    """Return the requests of ``parts``, one after the other."""
    return Columns._make(np.concatenate(columns) for columns in zip(*parts, strict=True))


def _in_order(columns: Columns) -> Columns:
    """Return requests in the order of their events, those of one event in the order of :class:`Kind`."""
    order = np.argsort(columns.event * len(Kind) + columns.kind, kind="stable")
    return Columns._make(column[order] for column in columns)


def _column(  # noqa: PLR0917 - one argument a column
    kind: Kind, block: Values, size: Values, stream: Values, event: Values, pool: Values | None = None
) -> Columns:
    """Return requests of one kind; without ``pool`` of none, or of the default one."""
    pool = [0] * len(block) if pool is None else pool
    as_indices = [np.asarray(values, dtype=np.int64) for values in (block, size, stream, event, pool)]
    return Columns(np.full(len(as_indices[0]), kind, dtype=np.int8), *as_indices)


def _mallocs(timeline: Timeline, end: int, pools: Pools) -> Columns:
    """Return the allocations of the trace; blocks of no duration contradict it."""
    table = timeline.lifetimes
    return _mallocs_of(timeline, (table.born > BEFORE) & (table.born < end) & (table.completed > table.born), pools)


def _older_mallocs(timeline: Timeline, end: int, pools: Pools) -> Columns:
    """Return requests for the blocks from before the trace, in the order of addresses."""
    table = timeline.lifetimes
    older = _mallocs_of(timeline, (table.born == BEFORE) & (table.born < end) & (table.completed > BEFORE), pools)
    order = np.argsort(table.address[older.block], kind="stable")
    return Columns._make(column[order] for column in older)


def _mallocs_of(timeline: Timeline, chosen: NDArray[np.bool_], pools: Pools) -> Columns:
    table, rows = timeline.lifetimes, np.flatnonzero(chosen)
    return _column(
        Kind.MALLOC, rows, sizes_asked(timeline)[rows], table.stream[rows], table.born[rows], pools.of_block[rows]
    )


def _frees(table: Lifetimes, action: NDArray[np.int8], end: int, *, pending_at: int | None) -> list[Columns]:
    """Return the frees; those that an allocation overtook wait for a stream of their own.

    What was freed before the trace, and still pending then, is freed at its first event. What was freed since the
    allocation before ``pending_at`` counts as overtaken by the one of that event.
    """
    serial = np.concatenate([[0], np.cumsum((action == Action.ALLOC) | (action == Action.OOM))])
    rows = np.flatnonzero((table.freed < end) & (table.completed > table.born))
    freed, completed = np.maximum(table.freed[rows], 0), table.completed[rows]
    waited_for = np.zeros(len(rows), dtype=bool) if pending_at is None else serial[freed] == serial[pending_at]
    deferred = (serial[completed] > serial[freed]) | (completed == table.end) | waited_for
    at_once, later = rows[~deferred], rows[deferred]
    waited = _waiting_streams(table, serial, later)
    done = np.flatnonzero((completed[deferred] < end) & ~waited_for[deferred])
    # Streams matter at allocations only, so that the last completion before one stands for all since the one before.
    done = done[np.lexsort((completed[deferred][done], serial[completed[deferred][done]], waited[done]))]
    keys = np.stack([waited[done], serial[completed[deferred][done]]])
    done = done[np.append((np.diff(keys) != 0).any(axis=0), np.ones(min(1, len(done)), dtype=bool))]
    return [
        _column(Kind.FREE, at_once, table.size[at_once], table.stream[at_once], freed[~deferred]),
        _column(Kind.USE, later, table.size[later], waited, freed[deferred]),
        _column(Kind.FREE, later, table.size[later], table.stream[later], freed[deferred]),
        _column(Kind.COMPLETE, [0] * len(done), [0] * len(done), waited[done], completed[deferred][done]),
    ]


def _waiting_streams(table: Lifetimes, serial: Indices, rows: Indices) -> Indices:
    """Return a stream for each deferred free, such that those who share one complete before the same allocation.

    Handles are none of the trace's own, above them where there is room, and used again once all of theirs are complete.
    """
    own = set(np.unique(table.stream).tolist())
    above = range(max(own, default=0) + 1, MAX_HANDLE + 1)
    unused = (handle for handle in chain(above, range(MAX_HANDLE)) if handle not in own)
    handle_of: dict[int, int] = {}
    running: list[int] = []
    idle: list[int] = []
    result = np.zeros(len(rows), dtype=np.int64)
    for position in np.argsort(table.freed[rows], kind="stable").tolist():
        row = rows[position]
        now = int(serial[max(table.freed[row], 0)])
        while running and running[0] < now:
            idle.append(handle_of.pop(heappop(running)))
        epoch = int(serial[table.completed[row]]) if table.completed[row] < table.end else 2**62
        if epoch not in handle_of:
            handle_of[epoch] = idle.pop() if idle else next(unused)
            heappush(running, epoch)
        result[position] = handle_of[epoch]
    return result


def _failed_tries(timeline: Timeline, end: int, fatal: int | None, pools: Pools) -> list[Columns]:
    """Return the allocations that failed before the end of the requests; the last of them to stay, if it was fatal."""
    trace, block = timeline.trace, len(timeline.lifetimes)
    events = np.flatnonzero(trace.action[:end] == Action.OOM)
    survived, ended_by = events[events != fatal], events[events == fatal]
    return [
        _column(kind, [block] * len(at), trace.size[at], trace.stream[at], at, pools.of_event[at])
        for kind, at in ((Kind.TRY, survived), (Kind.GIVE_BACK, survived), (Kind.MALLOC, ended_by))
    ]


def _releases(timeline: Timeline, releases: tuple[Release, ...], pools: Pools) -> list[Columns]:
    """Return what the program gave back; what a failed request released is the allocator's own doing.

    A private pool that gave something back was no longer in use, unless for a request of its own. Where nothing but
    memory of private pools was given back at once, these died; else ``empty_cache`` was called.
    """
    found: list[tuple[Kind, int, int]] = []
    for release in releases:
        numbers = _pools_given_back(timeline, release, pools)
        died = not release.refused and 0 not in numbers
        if not release.refused and not died:
            found.append((Kind.EMPTY_CACHE, release.event, 0))
        for number in sorted(numbers - {0}):
            found.append((Kind.RELEASE_POOL, release.event, number))
            found += [(Kind.EMPTY_POOL, release.event, number)] if died else []
    nobody = len(timeline.lifetimes)
    return [_column(kind, [nobody], [0], [0], [event], [number]) for kind, event, number in found]


def _pools_given_back(timeline: Timeline, release: Release, pools: Pools) -> set[int]:
    """Return the pools whose memory was given back, the one apart that this was done for by a request of its own."""
    if not pools.has_private:
        return {0}
    trace = timeline.trace
    events = np.arange(release.event, release.end)
    given_back = events[np.isin(trace.action[events], GIVEN_BACK)]
    numbers = set(pools.of_event[given_back].tolist())
    if release.refused and release.end < len(trace):
        numbers.discard(int(pools.of_event[release.end]))
    return numbers
