"""Frees that wait for other streams: ``record_stream``, the CUDA events a free records, and their completion.

A block used on another stream is not free when its tensor dies: one event per such stream is queued, and a later malloc
(or the wait before cached blocks are released) frees the block once the last of them has completed. PyTorch visits the
queues in the order of a hash map; here the default stream comes first, then the others by descending handle.
"""

from __future__ import annotations

from oomscope.allocator.blocks import is_split, log_block, put_free, try_merge
from oomscope.allocator.constants import (
    ACTIVE,
    ACTIVE_BYTES,
    ADDRESS,
    EVENT_LAG,
    EVENTS_HELD,
    FREE_COMPLETED,
    INACTIVE_SPLIT,
    INACTIVE_SPLIT_BYTES,
    MALLOCS,
    NEVER,
    NEXT,
    NONE,
    NOTE_BLOCK,
    NOTE_NEXT,
    NOTE_READY_AT,
    NOTE_STREAM,
    PAGE,
    PENDING,
    POOL,
    PREV,
    QUEUE_HEAD,
    QUEUE_TAIL,
    QUEUED,
    REQUESTED,
    REQUESTED_BYTES,
    SIZE,
    STREAM,
    STREAM_AT,
    STREAM_ROW,
    STREAMS,
    SYNCS,
    USES,
)
from oomscope.allocator.heap import Heap, drop_note, take_note
from oomscope.allocator.stats import lower_stat, raise_stat


def record_stream(heap: Heap, block: int, stream: int) -> None:
    """Note that an allocated block is used on ``stream``; its own stream and repetitions do not count."""
    row = heap.blocks
    if row[block + STREAM] == stream:
        return
    note = row[block + USES]
    while note != NONE:
        if heap.notes[note + NOTE_STREAM] == stream:
            return
        note = heap.notes[note + NOTE_NEXT]
    note = take_note(heap)
    heap.notes[note + NOTE_BLOCK] = block
    heap.notes[note + NOTE_STREAM] = stream
    heap.notes[note + NOTE_NEXT] = row[block + USES]
    row[block + USES] = note


def queue_events(heap: Heap, block: int) -> None:
    """Turn the uses of a block that was just freed into events, one at the end of each stream's queue."""
    n = heap.n
    notes = heap.notes
    ready_at = n[MALLOCS] + 1 + n[EVENT_LAG] if n[EVENT_LAG] >= 0 else NEVER
    note = heap.blocks[block + USES]
    heap.blocks[block + USES] = NONE
    while note != NONE:
        following = notes[note + NOTE_NEXT]
        notes[note + NOTE_READY_AT] = ready_at
        notes[note + NOTE_NEXT] = NONE
        queue = notes[note + NOTE_STREAM] * STREAM_ROW
        tail = heap.streams[queue + QUEUE_TAIL]
        if tail == NONE:
            heap.streams[queue + QUEUE_HEAD] = note
        else:
            notes[tail + NOTE_NEXT] = note
        heap.streams[queue + QUEUE_TAIL] = note
        heap.blocks[block + PENDING] += 1
        n[QUEUED] += 1
        note = following


def process_events(heap: Heap) -> None:
    """Complete the events that are ready, stream by stream, up to the first of each queue that is not."""
    n = heap.n
    if n[EVENTS_HELD]:
        return
    for turn in range(n[STREAMS]):
        stream = _in_turn(heap, turn)
        note = heap.streams[stream * STREAM_ROW + QUEUE_HEAD]
        while note != NONE and heap.notes[note + NOTE_READY_AT] <= n[MALLOCS]:
            _complete_first(heap, stream)
            note = heap.streams[stream * STREAM_ROW + QUEUE_HEAD]


def wait_for_events(heap: Heap) -> None:
    """Complete every event, as ``synchronize_and_free_events`` does."""
    heap.n[SYNCS] += 1
    for turn in range(heap.n[STREAMS]):
        stream = _in_turn(heap, turn)
        while heap.streams[stream * STREAM_ROW + QUEUE_HEAD] != NONE:
            _complete_first(heap, stream)


def make_events_ready(heap: Heap, stream: int) -> None:
    """Let the events of ``stream`` be found complete by the next malloc."""
    note = heap.streams[stream * STREAM_ROW + QUEUE_HEAD]
    while note != NONE:
        heap.notes[note + NOTE_READY_AT] = 0
        note = heap.notes[note + NOTE_NEXT]


def free_block(heap: Heap, block: int) -> None:
    """Join a block that nothing waits for with its idle neighbours and put it into its pool."""
    n = heap.n
    row = heap.blocks
    pool = row[block + POOL]
    size = row[block + SIZE]
    requested = row[block + REQUESTED]
    joined = 0
    joined_bytes = try_merge(heap, block, row[block + PREV])
    if joined_bytes > 0:
        joined = 1
    gained = try_merge(heap, block, row[block + NEXT])
    if gained > 0:
        joined += 1
        joined_bytes += gained
    put_free(heap, block)
    if row[block + PAGE] == 0:
        _count_inactive_split(heap, block, pool, joined, joined_bytes)
    lower_stat(n, ACTIVE, pool, 1)
    lower_stat(n, ACTIVE_BYTES, pool, size)
    lower_stat(n, REQUESTED_BYTES, pool, requested)


def _count_inactive_split(heap: Heap, block: int, pool: int, joined: int, joined_bytes: int) -> None:
    """Account for a freed block of cudaMalloc: the net change, since PyTorch's peaks see only that."""
    n = heap.n
    split = is_split(heap, block)
    change = (1 if split else 0) - joined
    if change > 0:
        raise_stat(n, INACTIVE_SPLIT, pool, change)
    elif change < 0:
        lower_stat(n, INACTIVE_SPLIT, pool, -change)
    change_bytes = (heap.blocks[block + SIZE] if split else 0) - joined_bytes
    if change_bytes > 0:
        raise_stat(n, INACTIVE_SPLIT_BYTES, pool, change_bytes)
    elif change_bytes < 0:
        lower_stat(n, INACTIVE_SPLIT_BYTES, pool, -change_bytes)


def _in_turn(heap: Heap, turn: int) -> int:
    place = 0 if turn == 0 else heap.n[STREAMS] - turn
    return heap.streams[place * STREAM_ROW + STREAM_AT]


def _complete_first(heap: Heap, stream: int) -> None:
    """Complete the oldest event of a stream, and free its block if it was the last that the block waited for."""
    row = heap.blocks
    note = heap.streams[stream * STREAM_ROW + QUEUE_HEAD]
    following = heap.notes[note + NOTE_NEXT]
    block = heap.notes[note + NOTE_BLOCK]
    heap.streams[stream * STREAM_ROW + QUEUE_HEAD] = following
    if following == NONE:
        heap.streams[stream * STREAM_ROW + QUEUE_TAIL] = NONE
    drop_note(heap, note)
    heap.n[QUEUED] -= 1
    row[block + PENDING] -= 1
    if row[block + PENDING] == 0:
        log_block(heap, FREE_COMPLETED, block, row[block + ADDRESS], row[block + REQUESTED])
        free_block(heap, block)
