"""Long traces at once: arrays of operations in, arrays of placements out, compiled where that pays.

The engine is the one that ``CachingAllocator`` runs; it is compiled by numba when the trace is long enough to win the
time back (a second of loading where the compiled engine lies on disk, a compilation of some twenty seconds where it
does not), and runs as Python otherwise. The results are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from oomscope.allocator.engine import constants, serve
from oomscope.allocator.engine.constants import DEFAULT_STREAM_ROW, NONE, OUT_OF_MEMORY
from oomscope.allocator.engine.driver import Driver
from oomscope.allocator.engine.memory import fill_room, grow, length_wanted
from oomscope.allocator.restore import restore
from oomscope.allocator.settings import AllocatorSettings
from oomscope.allocator.state import DEFAULT_STREAM, AllocatorState, add_pool, add_pool_stream, add_stream
from oomscope.allocator.views import AllocatorEvent, AllocatorSegment
from oomscope.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    IntArray = NDArray[np.int64]

COMPILED_FROM = 30_000
"""Operations from which loading the compiled engine pays."""
COMPILE_FROM = 250_000
"""Operations from which compiling it first pays: whoever replays a trace does so under half a dozen settings."""
FEW = 16
"""Distinct values up to which a pass over a column for each takes less than sorting it."""


class ReplayOp(IntEnum):
    """What an operation does with its allocation id, its bytes and its stream."""

    MALLOC = constants.MALLOC
    """Allocate ``nbytes`` for ``stream`` under the id."""
    FREE = constants.FREE
    """Free the id; ignored where its MALLOC failed or asked for nothing."""
    RECORD_STREAM = constants.RECORD_STREAM
    """Note that the id is used on ``stream``; ignored where its MALLOC failed."""
    SYNCHRONIZE = constants.SYNCHRONIZE
    """Let the events recorded so far on ``stream`` be complete."""
    EMPTY_CACHE = constants.EMPTY_CACHE
    """Give everything unused back to the driver, but what is cached of private pools in use."""
    RELEASE_POOL = constants.RELEASE_POOL
    """Let ``pool`` be in use no more, until a MALLOC is made in it again."""
    EMPTY_POOL = constants.EMPTY_POOL
    """Give what is cached of ``pool`` back to the driver; ignored while it is in use."""


OF_POOLS = (ReplayOp.RELEASE_POOL, ReplayOp.EMPTY_POOL)


@dataclass(frozen=True, kw_only=True)
class Held:
    """What an allocator holds before the first operation."""

    segments: Sequence[AllocatorSegment] = ()
    """In any order; those of one reservation share their ``range``."""
    ids: Mapping[int, int] = field(default_factory=dict)
    """The allocation id of each allocated block, by its address."""


NOTHING_HELD = Held()


@dataclass(frozen=True)
class ReplayOutcome:
    """What became of a trace; the arrays have one entry for each operation, -1 where nothing was allocated.

    ``sizes`` are the bytes that blocks really occupy; ``failed`` marks the allocations that ran out of memory.
    ``allocator`` holds the final state: peaks, counters, statistics, segments.
    """

    addresses: IntArray
    sizes: IntArray
    failed: NDArray[np.bool_]
    allocator: Replay

    @cached_property
    def events(self) -> tuple[AllocatorEvent, ...]:
        """All events, in order; ``op`` is the index of the operation."""
        return tuple(self.allocator.drain_events())

    @cached_property
    def ooms(self) -> tuple[AllocatorEvent, ...]:
        """The failures among the events."""
        return tuple(event for event in self.events if event.action == "oom")


class Replay(AllocatorState):
    """An allocator that is fed arrays of operations, one after the other.

    Args:
        settings: what PYTORCH_ALLOC_CONF says, and for which torch.
        driver: the device.
        ids: how many allocation ids there are; they count from 0.
        streams: the handles of all streams that occur, besides the default stream.
        fraction: see ``AllocatorState``.
        event_lag: see ``AllocatorState``.
        compiled: whether the engine runs compiled.
        held: what it begins with.
        pool_streams: the private pools that occur, as numbers above 0, each with the handle of a stream on which
            something is allocated in it; all are in use at first.

    Raises:
        UsageError: what it is to hold contradicts itself, or does not fit on the device.
    """

    def __init__(
        self,
        settings: AllocatorSettings,
        driver: Driver,
        *,
        ids: int,
        streams: Iterable[int] = (),
        fraction: float | None = None,
        event_lag: int | None = 0,
        compiled: bool = False,
        held: Held = NOTHING_HELD,
        pool_streams: Iterable[tuple[int, int]] = (),
    ) -> None:
        super().__init__(settings, driver, fraction=fraction, event_lag=event_lag)
        self._streams = {DEFAULT_STREAM: self._memory[DEFAULT_STREAM_ROW]}
        pairs = [*pool_streams, *((segment.pool, segment.stream) for segment in held.segments if segment.pool)]
        for handle in (*streams, *(segment.stream for segment in held.segments), *(handle for _, handle in pairs)):
            if handle not in self._streams:
                self._streams[handle] = add_stream(self._memory, handle)
        self._pools = {number: add_pool(self._memory, number) for number in sorted({number for number, _ in pairs})}
        self._pool_rows = {
            (number, handle): add_pool_stream(self._memory, self._pools[number], self._streams[handle])
            for number, handle in dict.fromkeys(pairs)
        }
        rows_of = {(0, handle): row for handle, row in self._streams.items()} | self._pool_rows
        grow(self._memory)
        self._compiled = compiled
        self._rows: Any = [NONE] * ids
        for address, row in restore(self._memory, held.segments, rows_of).items():
            if address not in held.ids:
                raise UsageError(f"the block held at {address:#x} has no id", remedy="give one for each that is live")
            self._rows[held.ids[address]] = row
        if compiled:
            self._memory = _array(self._memory)  # type: ignore[assignment]
            self._rows = _array(self._rows)

    def run(
        self,
        kinds: ArrayLike,
        ids: ArrayLike,
        nbytes: ArrayLike,
        streams: ArrayLike | None = None,
        pools: ArrayLike | None = None,
    ) -> ReplayOutcome:
        """Carry out operations: for each a ``ReplayOp``, an id, bytes and the handle of a stream (None: the default).

        ``pools`` has the number of the private pool of each MALLOC, RELEASE_POOL and EMPTY_POOL; 0, or None, is the
        default pool.

        Raises:
            UsageError: arrays of unequal length, an unknown kind, id, stream or pool, negative bytes, or an id
                allocated while it is live.
        """
        import numpy as np

        columns: list[Any] = _columns(kinds, ids, nbytes, len(self._rows))
        columns.append(self._in_pools(columns[0], self._stream_rows(streams, len(columns[0])), streams, pools))
        outputs: list[Any] = [np.full(len(columns[0]), NONE, np.int64) for _ in range(2)]
        if not self._compiled:
            columns = [column.tolist() for column in columns]
            outputs = [output.tolist() for output in outputs]
        kind_column, id_column, size_column, stream_column = columns
        ops = serve.Ops(kind_column, id_column, size_column, stream_column, self._rows, *outputs)
        self._drive(_compiled_run() if self._compiled else serve.run, ops)
        sizes = _array(ops.placed)
        failed = sizes == OUT_OF_MEMORY
        sizes[failed] = NONE
        return ReplayOutcome(_array(ops.addresses), sizes, failed, self)

    def _drive(self, run: serve.Run, ops: serve.Ops) -> None:
        """Run all operations, making room as often as the engine stops for want of it."""
        index = 0
        while True:
            index = run(self._memory, ops, index)
            if index < 0:
                raise UsageError(f"operation {~index} allocates an id that is live", remedy="free it first")
            if index == len(ops.kinds):
                return
            self._make_room()

    def _make_room(self) -> None:
        if not self._compiled:
            grow(self._memory)
            return
        import numpy as np

        longer = np.zeros(max(length_wanted(self._memory), len(self._memory)), np.int64)
        longer[: len(self._memory)] = self._memory
        self._memory = longer  # type: ignore[assignment]
        fill_room(self._memory)

    def _stream_rows(self, streams: ArrayLike | None, length: int) -> IntArray:
        import numpy as np

        if streams is None:
            return np.full(length, self._streams[DEFAULT_STREAM], np.int64)
        column = _array(streams)
        if len(column) != length:
            raise UsageError(f"{length} operations came with {len(column)} streams", remedy="give one for each")
        handles = sorted(_distinct(column))
        for handle in handles:
            if handle not in self._streams:
                raise UsageError(f"stream {handle:#x} was not announced", remedy="name all streams at the start")
        rows_of = _array([self._streams[handle] for handle in handles])
        rows: IntArray = rows_of[np.searchsorted(_array(handles), column)] if handles else column
        return rows

    def _in_pools(
        self, kinds: IntArray, rows: IntArray, streams: ArrayLike | None, pools: ArrayLike | None
    ) -> IntArray:
        """Return ``rows`` with those of private pools where operations are made in one, and the pools they speak of."""
        import numpy as np

        speaks = np.isin(kinds, OF_POOLS)
        if pools is None:
            if speaks.any():
                raise UsageError("an operation on a private pool names none", remedy="give the pools")
            return rows
        column = _array(pools)
        if len(column) != len(kinds):
            raise UsageError(f"{len(kinds)} operations came with {len(column)} pools", remedy="give one for each")
        handles = np.zeros(len(kinds), np.int64) if streams is None else _array(streams)
        inside = (kinds == ReplayOp.MALLOC) & (column != 0)
        rows = rows.copy()
        for number in _distinct(column[speaks]):
            rows[speaks & (column == number)] = self._known(self._pools, number, number)
        for number in _distinct(column[inside]):
            of_pool = inside & (column == number)
            for handle in _distinct(handles[of_pool]):
                rows[of_pool & (handles == handle)] = self._known(self._pool_rows, (number, handle), number)
        return rows

    @staticmethod
    def _known(rows: Mapping[Any, int], key: object, number: int) -> int:
        if key not in rows:
            raise UsageError(f"private pool {number} was not announced", remedy="name all pools at the start")
        return rows[key]

    def _allocated_rows(self) -> Iterable[int]:
        return [int(row) for row in self._rows if row >= 0]


def replay(
    kinds: ArrayLike,
    ids: ArrayLike,
    nbytes: ArrayLike,
    streams: ArrayLike | None = None,
    *,
    settings: AllocatorSettings,
    driver: Driver,
    fraction: float | None = None,
    event_lag: int | None = 0,
    compiled: bool | None = None,
    held: Held = NOTHING_HELD,
    pools: ArrayLike | None = None,
) -> ReplayOutcome:
    """Serve a trace from the start: for each operation a ``ReplayOp``, an allocation id, bytes and a stream's handle.

    Args:
        kinds: a ``ReplayOp`` for each operation.
        ids: which allocation; small numbers, since they index a table, that may be used again once freed.
        nbytes: what a MALLOC asks for; ignored otherwise.
        streams: handles of streams; None puts everything on the default stream.
        settings: what PYTORCH_ALLOC_CONF says, and for which torch.
        driver: the device.
        fraction: see ``AllocatorState``.
        event_lag: see ``AllocatorState``.
        compiled: whether to run compiled; None decides by the length of the trace and by what lies on disk.
        held: what the allocator holds before.
        pools: numbers of private pools, see ``Replay.run``; None puts everything into the default pool.

    Raises:
        UsageError: see ``Replay`` and ``Replay.run``.
    """
    id_column = _array(ids)
    handles = [] if streams is None else _distinct(_array(streams))
    if compiled is None:
        compiled = pays_compiled(len(id_column))
    allocator = Replay(
        settings,
        driver,
        ids=max(int(id_column.max(initial=NONE)), *held.ids.values(), NONE) + 1,
        streams=handles,
        fraction=fraction,
        event_lag=event_lag,
        compiled=compiled,
        held=held,
        pool_streams=_pairs(streams, pools),
    )
    return allocator.run(kinds, id_column, nbytes, streams, pools)


def pays_compiled(operations: int) -> bool:
    """Say whether a trace of so many operations is through sooner with the compiled engine."""
    if operations < COMPILED_FROM:
        return False
    from oomscope.allocator.compiled import is_compiled

    return operations >= COMPILE_FROM or is_compiled()


def _compiled_run() -> serve.Run:
    from oomscope.allocator.compiled import compiled_run

    return compiled_run()


def _columns(kinds: ArrayLike, ids: ArrayLike, nbytes: ArrayLike, known_ids: int) -> list[IntArray]:
    """Return the columns as arrays of int64, checked; requests that exceed every device are cut to one that does."""
    columns = [_array(kinds), _array(ids), _array(nbytes)]
    kind_column, id_column, size_column = columns
    if len({len(column) for column in columns}) != 1:
        lengths = ", ".join(str(len(column)) for column in columns)
        raise UsageError(f"kinds, ids and nbytes have {lengths} entries", remedy="give one of each for an operation")
    if not len(kind_column):
        return columns
    if kind_column.min() < 0 or kind_column.max() >= len(ReplayOp):
        raise UsageError("an operation is of an unknown kind", remedy="use the values of ReplayOp")
    if id_column.min() < 0 or id_column.max() >= known_ids:
        raise UsageError(f"an allocation id is not in 0..{known_ids - 1}", remedy="count ids from 0")
    if size_column.min() < 0:
        raise UsageError("an operation is of a negative number of bytes", remedy="give 0 or more")
    return [kind_column, id_column, size_column.clip(max=constants.MAX_REQUEST)]


def _pairs(streams: ArrayLike | None, pools: ArrayLike | None) -> list[tuple[int, int]]:
    """Return each private pool with each stream that occurs beside it."""
    import numpy as np

    if pools is None:
        return []
    column = _array(pools)
    handles = np.zeros(len(column), np.int64) if streams is None else _array(streams)
    if len(handles) != len(column):
        return []
    return [
        (number, handle) for number in _distinct(column[column != 0]) for handle in _distinct(handles[column == number])
    ]


def _distinct(column: IntArray) -> list[int]:
    """Return the values that occur: one pass for each while they are few, which most are, else by sorting."""
    import numpy as np

    values: list[int] = []
    rest = column
    while len(rest) and len(values) < FEW:
        values.append(int(rest[0]))
        rest = rest[rest != values[-1]]
    return [*values, *np.unique(rest).tolist()]


def _array(values: ArrayLike) -> IntArray:
    import numpy as np

    return np.ascontiguousarray(values, dtype=np.int64)
