"""An allocator's memory: how settings, streams and private pools are written into it, and what it can be asked."""

from __future__ import annotations

from collections.abc import Iterable

from oomscope.allocator.engine import serve
from oomscope.allocator.engine.constants import *
from oomscope.allocator.engine.driver import Driver, device_free
from oomscope.allocator.engine.memory import Memory, empty_memory, grow, take
from oomscope.allocator.settings import AllocatorSettings
from oomscope.allocator.views import AllocatorEvent, AllocatorSegment, drain_log, segments_of
from oomscope.errors import UsageError


def add_stream(m: Memory, handle: int) -> int:
    """Return a new stream, chained to the others in order of handles, at the end of a list."""
    stream = _new_row(m, handle, NONE)
    m[stream + DEFAULT_ROW] = stream
    below = m[HIGHEST_STREAM] if m[STREAMS_LIVE] else NONE
    above = NONE
    while below != NONE and m[below + HANDLE] > handle:
        above = below
        below = m[below + BELOW]
    m[stream + ABOVE] = above
    m[stream + BELOW] = below
    m[HIGHEST_STREAM if above == NONE else above + BELOW] = stream
    m[LOWEST_STREAM if below == NONE else below + ABOVE] = stream
    m[STREAMS_LIVE] += 1
    return stream


def add_pool(m: Memory, number: int) -> int:
    """Return a new private pool, in use and without a stream, chained to the others in order of numbers."""
    m.extend([0] * (m[TOP] + POOL_ROW - len(m)))
    pool = take(m, POOL_ROW)
    m[pool + POOL_NUMBER] = number
    m[pool + POOL_IN_USE] = 1
    m[pool + LOWEST_OF_POOL] = NONE
    before, after = NONE, m[FIRST_POOL]
    while after != NONE and m[after + POOL_NUMBER] < number:
        before, after = after, m[after + NEXT_POOL]
    m[pool + NEXT_POOL] = after
    m[FIRST_POOL if before == NONE else before + NEXT_POOL] = pool
    return pool


def add_pool_stream(m: Memory, pool: int, stream: int) -> int:
    """Return the row of ``stream`` in a private pool, chained to its others in order of handles."""
    row = _new_row(m, m[stream + HANDLE], pool)
    m[row + DEFAULT_ROW] = stream
    below, above = NONE, m[pool + LOWEST_OF_POOL]
    while above != NONE and m[above + HANDLE] < m[row + HANDLE]:
        below, above = above, m[above + ABOVE]
    m[row + ABOVE], m[row + BELOW] = above, below
    if above != NONE:
        m[above + BELOW] = row
    m[pool + LOWEST_OF_POOL if below == NONE else below + ABOVE] = row
    m[STREAMS_LIVE] += 1
    return row


def _new_row(m: Memory, handle: int, owner: int) -> int:
    m.extend([0] * (m[TOP] + STREAM_ROW - len(m)))
    row = take(m, STREAM_ROW)
    m[row + HANDLE] = handle
    m[row + OWNER] = owner
    m[row + QUEUE_HEAD] = m[row + QUEUE_TAIL] = NONE
    return row


class AllocatorState:
    """An allocator's memory, and what does not depend on how requests reach it.

    Args:
        settings: what PYTORCH_ALLOC_CONF says, and for which torch.
        driver: the device.
        fraction: ``set_per_process_memory_fraction`` before the first allocation; None leaves it to the settings.
        event_lag: after how many further mallocs the events of a free complete: 0 at the next one, None only through
            a synchronisation or the wait before cached blocks are released.

    Raises:
        UsageError: a negative fraction or event lag.
    """

    def __init__(
        self,
        settings: AllocatorSettings,
        driver: Driver,
        *,
        fraction: float | None = None,
        event_lag: int | None = 0,
    ) -> None:
        if event_lag is not None and event_lag < 0:
            raise UsageError(f"event_lag is {event_lag}", remedy="give a number of mallocs, 0 or more, or None")
        self.settings = settings
        """The settings in force."""
        self._memory = m = empty_memory()
        driver.attach(m)
        m[EVENT_LAG] = NONE if event_lag is None else event_lag
        m[READY_STREAM] = NONE
        at_start = None if settings.per_process_memory_fraction == 1 else settings.per_process_memory_fraction
        self._limit(at_start if fraction is None else fraction)
        self._apply_settings()
        m[DEFAULT_STREAM_ROW] = add_stream(m, DEFAULT_STREAM)
        self._streams = {DEFAULT_STREAM: m[DEFAULT_STREAM_ROW]}
        self._pools: dict[int, int] = {}
        self._pool_rows: dict[tuple[int, int], int] = {}
        grow(m)

    def _apply_settings(self) -> None:
        """Write everything that a configuration string decides, except the memory fraction."""
        m, settings = self._memory, self.settings
        m[EXPANDABLE] = int(settings.expandable_segments)
        m[MAX_SPLIT] = settings.max_split_size
        m[NON_SPLIT_ROUNDING] = settings.max_non_split_rounding
        m[LARGE_SEGMENT] = settings.large_segment_size
        m[THROW_ON_OOM] = int(settings.throw_on_cudamalloc_oom)
        m[TIE_RULE] = settings.tie_rule
        m[POOLS_RETRY] = int(settings.pools_retry)
        m[FREES_SHORT] = int(settings.frees_short_reservations)
        m[DIVIDED] = int(any(divisions > 1 for divisions in settings.roundup_power2_divisions))
        m[DIVISIONS : DIVISIONS + DIVISION_INTERVALS] = list(settings.roundup_power2_divisions)
        self._apply_garbage_threshold()

    def _limit(self, fraction: float | None) -> None:
        """Write the limit of ``set_per_process_memory_fraction``; None: it was never called."""
        if fraction is not None and fraction < 0:
            raise UsageError(f"the memory fraction is {fraction}", remedy="give a fraction of the device from 0 to 1")
        limit = self.settings.limit_bytes(fraction, int(self._memory[TOTAL]))
        self._memory[LIMIT] = NONE if limit is None else limit
        self._apply_garbage_threshold()

    def _apply_garbage_threshold(self) -> None:
        m, threshold = self._memory, self.settings.garbage_collection_threshold
        m[GC_BYTES] = int(threshold * m[LIMIT]) if threshold > 0 and m[LIMIT] != NONE else NONE

    def _row(self, handle: int, pool: int = 0) -> int:
        """Return the row of a stream in a pool (0: the default one), a new one at first sight."""
        if handle not in self._streams:
            self._streams[handle] = add_stream(self._list(), handle)
        if not pool:
            return self._streams[handle]
        if (pool, handle) not in self._pool_rows:
            row = add_pool_stream(self._list(), self._pool(pool), self._streams[handle])
            self._pool_rows[pool, handle] = row
        return self._pool_rows[pool, handle]

    def _pool(self, number: int) -> int:
        """Return a private pool, a new one at first sight, which is in use."""
        if number not in self._pools:
            self._pools[number] = add_pool(self._list(), number)
        return self._pools[number]

    def _list(self) -> Memory:
        """Return the memory as a list, to which rows can be added."""
        return self._memory

    # ---- what it did and holds ----------------------------------------------------------------------------------

    def round_size(self, nbytes: int) -> int:
        """Return the size of the block that would serve ``nbytes``; 0 for 0 bytes."""
        return int(serve.round_size(self._memory, nbytes)) if nbytes else 0

    def segment_size(self, rounded: int) -> int:
        """Return the bytes that the driver is asked for to serve a block of ``rounded`` bytes."""
        return int(serve.segment_size(self._memory, rounded))

    def drain_events(self) -> list[AllocatorEvent]:
        """Return what happened since the last call, in order, and forget it."""
        return drain_log(self._memory)

    def segments(self) -> list[AllocatorSegment]:
        """Return everything held from the driver, by address."""
        return segments_of(self._memory, self._allocated_rows())

    def _allocated_rows(self) -> Iterable[int]:
        raise NotImplementedError

    @property
    def reserved_bytes(self) -> int:
        """Bytes held from the driver."""
        return int(self._memory[RESERVED_BYTES + CURRENT])

    @property
    def reserved_peak(self) -> int:
        """Largest ``reserved_bytes`` so far."""
        return int(self._memory[RESERVED_BYTES + PEAK])

    @property
    def device_free(self) -> int:
        """Free bytes of the device, as ``cudaMemGetInfo`` reports them."""
        return int(device_free(self._memory))

    @property
    def num_alloc_retries(self) -> int:
        """How often cached blocks were released for a request."""
        return int(self._memory[RETRIES])
