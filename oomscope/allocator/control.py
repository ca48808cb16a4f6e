"""Settings, limits and streams as they are written into the engine's state, by the online allocator and the replay."""

from __future__ import annotations

from oomscope.allocator.constants import (
    DIVIDED,
    DIVISIONS,
    EVENT_LAG,
    EXPANDABLE,
    GC_BYTES,
    LARGE_SEGMENT,
    LIMIT,
    MAX_SPLIT,
    NON_SPLIT_ROUNDING,
    NONE,
    QUEUE_HEAD,
    QUEUE_TAIL,
    STREAM_AT,
    STREAM_HANDLE,
    STREAM_ROW,
    STREAMS,
    THROW_ON_OOM,
    TIE_RULE,
    TOTAL,
)
from oomscope.allocator.driver import Driver
from oomscope.allocator.heap import Heap, Ints, empty_heap, grown
from oomscope.allocator.settings import AllocatorSettings
from oomscope.errors import UsageError

DEFAULT_STREAM = 0


def new_heap(
    settings: AllocatorSettings, driver: Driver, fraction: float | None, event_lag: int | None, streams: tuple[int, ...]
) -> Heap:
    """Return the state of an allocator that has not served anything, as lists.

    Without a ``fraction`` the settings' ``per_process_memory_fraction`` counts, as at torch's start. The default
    stream is always there, in row 0; ``streams`` follow in the order given.

    Raises:
        UsageError: a negative fraction or event lag.
    """
    if event_lag is not None and event_lag < 0:
        raise UsageError(f"event_lag is {event_lag}", remedy="give a number of mallocs, 0 or more, or None")
    heap = empty_heap()
    for handle in (DEFAULT_STREAM, *streams):
        heap = add_stream(heap, handle)
    heap = grown(heap, recorded=len(driver.addresses))
    driver.attach(heap)
    heap.n[EVENT_LAG] = NONE if event_lag is None else event_lag
    apply_fraction(heap.n, settings, settings.per_process_memory_fraction if fraction is None else fraction)
    apply_settings(heap.n, settings)
    return heap


def apply_settings(n: Ints, settings: AllocatorSettings) -> None:
    """Write everything that a configuration string decides, except the memory fraction."""
    n[EXPANDABLE] = int(settings.expandable_segments)
    n[MAX_SPLIT] = settings.max_split_size
    n[NON_SPLIT_ROUNDING] = settings.max_non_split_rounding
    n[LARGE_SEGMENT] = settings.large_segment_size
    n[THROW_ON_OOM] = int(settings.throw_on_cudamalloc_oom)
    n[TIE_RULE] = settings.tie_rule
    n[DIVIDED] = int(any(divisions > 1 for divisions in settings.roundup_power2_divisions))
    for interval, divisions in enumerate(settings.roundup_power2_divisions):
        n[DIVISIONS + interval] = divisions
    _apply_garbage_threshold(n, settings)


def apply_fraction(n: Ints, settings: AllocatorSettings, fraction: float) -> None:
    """Write the limit of ``set_per_process_memory_fraction``; 1 or more lifts it."""
    if fraction < 0:
        raise UsageError(f"the memory fraction is {fraction}", remedy="give a fraction of the device from 0 to 1")
    limit = settings.limit_bytes(fraction, n[TOTAL])
    n[LIMIT] = NONE if limit is None else limit
    _apply_garbage_threshold(n, settings)


def _apply_garbage_threshold(n: Ints, settings: AllocatorSettings) -> None:
    threshold = settings.garbage_collection_threshold
    n[GC_BYTES] = int(threshold * n[LIMIT]) if threshold > 0 and n[LIMIT] != NONE else NONE


def add_stream(heap: Heap, handle: int) -> Heap:
    """Return the heap with one more stream in the next row, and the streams' order by handle brought up to date."""
    row = heap.n[STREAMS]
    heap = grown(heap, streams=row + 1)
    heap.n[STREAMS] = row + 1
    streams = heap.streams
    streams[row * STREAM_ROW + STREAM_HANDLE] = handle
    streams[row * STREAM_ROW + QUEUE_HEAD] = NONE
    streams[row * STREAM_ROW + QUEUE_TAIL] = NONE
    ordered = sorted(range(row + 1), key=lambda of: streams[of * STREAM_ROW + STREAM_HANDLE])
    for place, stream in enumerate(ordered):
        streams[place * STREAM_ROW + STREAM_AT] = stream
    return heap
