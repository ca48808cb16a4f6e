"""How settings, limits, streams and private pools are written into the emulator's memory."""

from __future__ import annotations

from oomscope.allocator.constants import (
    ABOVE,
    BELOW,
    DEFAULT_ROW,
    DEFAULT_STREAM_ROW,
    DIVIDED,
    DIVISIONS,
    EVENT_LAG,
    EXPANDABLE,
    FIRST_POOL,
    FREES_SHORT,
    GC_BYTES,
    HANDLE,
    HAS_ALLOCATOR,
    HIGHEST_STREAM,
    LARGE_SEGMENT,
    LIMIT,
    LOWEST_OF_POOL,
    LOWEST_STREAM,
    MAX_SPLIT,
    NEXT_POOL,
    NON_SPLIT_ROUNDING,
    NONE,
    OWNER,
    POOL_IN_USE,
    POOL_NUMBER,
    POOL_RETRIES,
    POOL_ROW,
    QUEUE_HEAD,
    QUEUE_TAIL,
    READY_STREAM,
    STREAM_ROW,
    STREAMS_LIVE,
    THROW_ON_OOM,
    TIE_RULE,
    TOP,
    TOTAL,
)
from oomscope.allocator.driver import Driver
from oomscope.allocator.memory import Memory, empty_memory, grow, take
from oomscope.allocator.settings import AllocatorSettings
from oomscope.errors import UsageError

DEFAULT_STREAM = 0
"""The handle of CUDA's default stream, which is always there."""


def new_memory(settings: AllocatorSettings, driver: Driver, fraction: float | None, event_lag: int | None) -> Memory:
    """Return the memory, a list, of an allocator that has not served anything and knows only the default stream.

    Without a ``fraction`` the settings' ``per_process_memory_fraction`` counts, as at torch's start.

    Raises:
        UsageError: a negative fraction or event lag.
    """
    if event_lag is not None and event_lag < 0:
        raise UsageError(f"event_lag is {event_lag}", remedy="give a number of mallocs, 0 or more, or None")
    m = empty_memory()
    driver.attach(m)
    m[EVENT_LAG] = NONE if event_lag is None else event_lag
    m[READY_STREAM] = NONE
    apply_fraction(m, settings, _fraction_at_start(settings) if fraction is None else fraction)
    apply_settings(m, settings)
    m[DEFAULT_STREAM_ROW] = add_stream(m, DEFAULT_STREAM)
    grow(m)
    return m


def apply_settings(m: Memory, settings: AllocatorSettings) -> None:
    """Write everything that a configuration string decides, except the memory fraction."""
    m[EXPANDABLE] = int(settings.expandable_segments)
    m[MAX_SPLIT] = settings.max_split_size
    m[NON_SPLIT_ROUNDING] = settings.max_non_split_rounding
    m[LARGE_SEGMENT] = settings.large_segment_size
    m[THROW_ON_OOM] = int(settings.throw_on_cudamalloc_oom)
    m[TIE_RULE] = settings.tie_rule
    m[FREES_SHORT] = int(settings.frees_short_reservations)
    m[DIVIDED] = int(any(divisions > 1 for divisions in settings.roundup_power2_divisions))
    for interval, divisions in enumerate(settings.roundup_power2_divisions):
        m[DIVISIONS + interval] = divisions
    _apply_garbage_threshold(m, settings)


def _fraction_at_start(settings: AllocatorSettings) -> float | None:
    """Return the fraction that the settings ask for; None where they ask for none."""
    fraction = settings.per_process_memory_fraction
    return None if fraction == 1 else fraction


def apply_fraction(m: Memory, settings: AllocatorSettings, fraction: float | None) -> None:
    """Write the limit of ``set_per_process_memory_fraction``; None: it was never called."""
    if fraction is not None and fraction < 0:
        raise UsageError(f"the memory fraction is {fraction}", remedy="give a fraction of the device from 0 to 1")
    limit = settings.limit_bytes(fraction, int(m[TOTAL]))
    m[LIMIT] = NONE if limit is None else limit
    _apply_garbage_threshold(m, settings)


def _apply_garbage_threshold(m: Memory, settings: AllocatorSettings) -> None:
    threshold = settings.garbage_collection_threshold
    m[GC_BYTES] = int(threshold * m[LIMIT]) if threshold > 0 and m[LIMIT] != NONE else NONE


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


def add_pool(m: Memory, number: int, *, has_allocator: bool = False, retries: bool = False) -> int:
    """Return a new private pool, in use and without a stream, at the end of a list."""
    m.extend([0] * (m[TOP] + POOL_ROW - len(m)))
    pool = take(m, POOL_ROW)
    m[pool + POOL_NUMBER] = number
    m[pool + NEXT_POOL] = NONE
    m[pool + POOL_IN_USE] = 1
    m[pool + HAS_ALLOCATOR] = int(has_allocator)
    m[pool + POOL_RETRIES] = int(retries)
    m[pool + LOWEST_OF_POOL] = NONE
    if m[FIRST_POOL] == NONE:
        m[FIRST_POOL] = pool
        return pool
    last = m[FIRST_POOL]
    while m[last + NEXT_POOL] != NONE:
        last = m[last + NEXT_POOL]
    m[last + NEXT_POOL] = pool
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
