"""Frees that wait for other streams: ``record_stream``, the CUDA events a free records, and their completion.

A block used on another stream is not free when its tensor dies: one event per such stream is queued, and a later malloc
(or the wait before cached blocks are released) frees the block once the last of them has completed. PyTorch visits the
queues in the order of a hash map; here the default stream comes first, then the others by descending handle.
"""

from __future__ import annotations

from oomscope.allocator.blocks import free_block
from oomscope.allocator.constants import (
    ADDRESS,
    BELOW,
    DEFAULT_ROW,
    DEFAULT_STREAM_ROW,
    EVENT_LAG,
    EVENTS_HELD,
    FREE_COMPLETED,
    HIGHEST_STREAM,
    MALLOCS,
    NEVER,
    NONE,
    NOTE_BLOCK,
    NOTE_NEXT,
    NOTE_READY_AT,
    NOTE_STREAM,
    PENDING,
    QUEUE_HEAD,
    QUEUE_TAIL,
    QUEUED,
    READY_STREAM,
    REQUESTED,
    SEVERAL,
    STREAM,
    SYNCS,
    USES,
)
from oomscope.allocator.eventlog import log_block
from oomscope.allocator.memory import Memory, drop_note, take_note


def record_stream(m: Memory, block: int, stream: int) -> None:
    """Note that an allocated block is used on ``stream``; its own stream and repetitions do not count."""
    if m[m[block + STREAM] + DEFAULT_ROW] == stream:
        return
    note = m[block + USES]
    while note != NONE:
        if m[note + NOTE_STREAM] == stream:
            return
        note = m[note + NOTE_NEXT]
    note = take_note(m)
    m[note + NOTE_BLOCK] = block
    m[note + NOTE_STREAM] = stream
    m[note + NOTE_NEXT] = m[block + USES]
    m[block + USES] = note


def queue_events(m: Memory, block: int) -> None:
    """Turn the uses of a block that was just freed into events, one at the end of each stream's queue."""
    ready_at = m[MALLOCS] + 1 + m[EVENT_LAG] if m[EVENT_LAG] >= 0 else NEVER
    note = m[block + USES]
    m[block + USES] = NONE
    while note != NONE:
        following = m[note + NOTE_NEXT]
        m[note + NOTE_READY_AT] = ready_at
        m[note + NOTE_NEXT] = NONE
        queue = m[note + NOTE_STREAM]
        tail = m[queue + QUEUE_TAIL]
        if tail == NONE:
            m[queue + QUEUE_HEAD] = note
        else:
            m[tail + NOTE_NEXT] = note
        m[queue + QUEUE_TAIL] = note
        m[block + PENDING] += 1
        m[QUEUED] += 1
        note = following


def process_events(m: Memory) -> None:
    """Complete the events that are ready, stream by stream, up to the first of each queue that is not.

    Where time alone completes none, only streams that were synchronised since the last look can have any.
    """
    if m[EVENTS_HELD]:
        return
    ready = m[READY_STREAM] if m[EVENT_LAG] < 0 else SEVERAL
    m[READY_STREAM] = NONE
    if ready != SEVERAL:
        if ready != NONE:
            _process_queue(m, ready)
        return
    _process_queue(m, m[DEFAULT_STREAM_ROW])
    stream = m[HIGHEST_STREAM]
    while stream != NONE:
        _process_queue(m, stream)
        stream = m[stream + BELOW]


def wait_for_events(m: Memory) -> None:
    """Complete every event, as ``synchronize_and_free_events`` does."""
    m[SYNCS] += 1
    _drain_queue(m, m[DEFAULT_STREAM_ROW])
    stream = m[HIGHEST_STREAM]
    while stream != NONE:
        _drain_queue(m, stream)
        stream = m[stream + BELOW]


def make_events_ready(m: Memory, stream: int) -> None:
    """Let the events of ``stream`` be found complete by the next malloc."""
    note = m[stream + QUEUE_HEAD]
    if note != NONE:
        m[READY_STREAM] = stream if m[READY_STREAM] == NONE or m[READY_STREAM] == stream else SEVERAL
    while note != NONE:
        m[note + NOTE_READY_AT] = 0
        note = m[note + NOTE_NEXT]


def _process_queue(m: Memory, stream: int) -> None:
    note = m[stream + QUEUE_HEAD]
    while note != NONE and m[note + NOTE_READY_AT] <= m[MALLOCS]:
        _complete_first(m, stream)
        note = m[stream + QUEUE_HEAD]


def _drain_queue(m: Memory, stream: int) -> None:
    while m[stream + QUEUE_HEAD] != NONE:
        _complete_first(m, stream)


def _complete_first(m: Memory, stream: int) -> None:
    """Complete the oldest event of a stream, and free its block if it was the last that the block waited for."""
    note = m[stream + QUEUE_HEAD]
    following = m[note + NOTE_NEXT]
    block = m[note + NOTE_BLOCK]
    m[stream + QUEUE_HEAD] = following
    if following == NONE:
        m[stream + QUEUE_TAIL] = NONE
    drop_note(m, note)
    m[QUEUED] -= 1
    m[block + PENDING] -= 1
    if m[block + PENDING] == 0:
        log_block(m, FREE_COMPLETED, block, m[block + ADDRESS], m[block + REQUESTED])
        free_block(m, block)
