"""Long traces at once: arrays of operations in, arrays of placements out, compiled where that pays.

The engine is compiled by numba when the trace is long enough to win the time back (a second of loading where the
compiled engine lies on disk, a compilation of some twenty seconds where it does not), and runs as Python otherwise. The
results are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from oomscope.allocator.engine import constants, serve
from oomscope.allocator.engine.constants import DEFAULT_STREAM, NONE, OUT_OF_MEMORY
from oomscope.allocator.engine.driver import Driver
from oomscope.allocator.engine.memory import Memory, fill_room, grow, length_wanted
from oomscope.allocator.restore import restore
from oomscope.allocator.settings import AllocatorSettings
from oomscope.allocator.state import AllocatorState
from oomscope.allocator.views import AllocatorEvent, AllocatorSegment
from oomscope.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    IntArray = NDArray[np.int64]

COMPILED_FROM = 30_000
"""Operations from which loading the compiled engine pays."""
COMPILE_FROM = 250_000
"""Operations from which compiling it first pays: a trace is replayed under half a dozen settings."""
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
    """The segments in any order; those of one reservation share their ``range``."""
    ids: Mapping[int, int] = field(default_factory=dict)
    """The allocation id of each allocated block, by its address."""


NOTHING_HELD = Held()


@dataclass(frozen=True)
class ReplayOutcome:
    """The outcome of a trace; the arrays have one entry for each operation, -1 where nothing was allocated.

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


class Replay(AllocatorState):
    """An allocator, as in ``AllocatorState``, that is fed arrays of operations, one after the other.

    There are ``ids`` allocation ids, which count from 0.

    Raises:
        UsageError: what it is to hold contradicts itself, or does not fit on the device.
    """

    def __init__(
        self,
        settings: AllocatorSettings,
        driver: Driver,
        *,
        ids: int,
        fraction: float | None = None,
        event_lag: int | None = 0,
        compiled: bool = False,
        held: Held = NOTHING_HELD,
    ) -> None:
        super().__init__(settings, driver, fraction=fraction, event_lag=event_lag)
        self._compiled = compiled
        self._rows: Any = [NONE] * ids
        rows_of = {(each.pool, each.stream): self._row(each.stream, each.pool) for each in held.segments}
        grow(self._memory)
        for address, row in restore(self._memory, held.segments, rows_of).items():
            if address not in held.ids:
                raise UsageError(f"the block held at {address:#x} has no id", remedy="give one for each that is live")
            self._rows[held.ids[address]] = row

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
        default pool. A private pool is in use from its first operation on.

        Raises:
            UsageError: an unknown kind or id, negative bytes, or an id allocated while it is live.
        """
        import numpy as np

        what, names, sizes = _array(kinds), _array(ids), _array(nbytes)
        _check(what, names, sizes, len(self._rows))
        sizes = sizes.clip(max=constants.MAX_REQUEST)  # exceeds every device all the same
        columns: list[Any] = [what, names, sizes, self._rows_of(what, streams, pools)]
        outputs: list[Any] = [np.full(len(what), NONE, np.int64) for _ in range(2)]
        if self._compiled:
            self._memory, self._rows = _array(self._memory), _array(self._rows)  # type: ignore[assignment]
        else:
            columns, outputs = [[each.tolist() for each in group] for group in (columns, outputs)]
        kind_column, id_column, size_column, stream_column = columns
        ops = serve.Ops(kind_column, id_column, size_column, stream_column, self._rows, *outputs)
        self._drive(_compiled_run() if self._compiled else serve.run, ops)
        sizes = _array(ops.placed)
        failed = sizes == OUT_OF_MEMORY
        sizes[failed] = NONE
        return ReplayOutcome(_array(ops.addresses), sizes, failed, self)

    def _drive(self, run: serve.Run, ops: serve.Ops) -> None:
        """Run all operations, making room whenever the engine stops for lack of it."""
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

    def _rows_of(self, kinds: IntArray, streams: ArrayLike | None, pools: ArrayLike | None) -> IntArray:
        """Return the row of each operation's stream in its pool, or the pool that it is about."""
        import numpy as np

        handles = np.full(len(kinds), DEFAULT_STREAM, np.int64) if streams is None else _array(streams)
        known = sorted(_distinct(handles))
        rows_of = _array([self._row(handle) for handle in known])
        rows: IntArray = rows_of[np.searchsorted(_array(known), handles)] if known else handles
        if pools is None:
            return rows
        speaks, numbers = np.isin(kinds, OF_POOLS), _array(pools)
        inside = (kinds == ReplayOp.MALLOC) & (numbers != 0)
        for number in sorted(_distinct(numbers[speaks | inside])):
            rows[speaks & (numbers == number)] = self._pool(number)
            of_pool = inside & (numbers == number)
            for handle in _distinct(handles[of_pool]):
                rows[of_pool & (handles == handle)] = self._row(handle, number)
        return rows

    def _list(self) -> Memory:
        """Return the memory as a list; the next compiled run makes an array of it again."""
        memory: Any = self._memory
        self._memory = memory if isinstance(memory, list) else memory.tolist()
        return self._memory

    def _allocated_rows(self) -> Iterable[int]:
        rows = _array(self._rows)
        allocated: list[int] = rows[rows >= 0].tolist()
        return allocated


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
    """Serve a trace from the start, with arguments of ``Replay`` and ``Replay.run``.

    Ids are small numbers, since they index a table, that may be used again once freed. ``compiled`` None decides by the
    length of the trace and by what lies on disk.

    Raises:
        UsageError: see ``Replay`` and ``Replay.run``.
    """
    id_column = _array(ids)
    allocator = Replay(
        settings,
        driver,
        ids=max(int(id_column.max(initial=NONE)), *held.ids.values(), NONE) + 1,
        fraction=fraction,
        event_lag=event_lag,
        compiled=pays_compiled(len(id_column)) if compiled is None else compiled,
        held=held,
    )
    return allocator.run(kinds, id_column, nbytes, streams, pools)


def pays_compiled(operations: int) -> bool:
    """Return whether the compiled engine finishes a trace of so many operations sooner."""
    if operations < COMPILED_FROM:
        return False
    from oomscope.allocator.compiled import is_compiled

    return operations >= COMPILE_FROM or is_compiled()


def _compiled_run() -> serve.Run:
    from oomscope.allocator.compiled import compiled_run

    return compiled_run()


def _check(kinds: IntArray, ids: IntArray, nbytes: IntArray, known_ids: int) -> None:
    """Refuse what the compiled engine, which checks nothing, would read or write out of bounds."""
    if not len(kinds):
        return
    if kinds.min() < 0 or kinds.max() >= len(ReplayOp):
        raise UsageError("an operation is of an unknown kind", remedy="use the values of ReplayOp")
    if ids.min() < 0 or ids.max() >= known_ids:
        raise UsageError(f"an allocation id is not in 0..{known_ids - 1}", remedy="count ids from 0")
    if nbytes.min() < 0:
        raise UsageError("an operation is of a negative number of bytes", remedy="give 0 or more")


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
