"""Frees that wait for other streams: ``record_stream``, the CUDA events a free records, and their completion.

A block used on another stream is not free when its tensor dies: one event per such stream is queued, and a later malloc
(or the wait before cached blocks are released) frees the block once the last of them has completed. PyTorch visits the
queues in the order of a hash map; here the default stream comes first, then the others by descending handle.

What the allocator gives back to the driver before it gives up: garbage, oversize blocks, everything cached.

Of a private pool that is in use only a request made in it gives back oversize blocks; what else is cached there stays.

Rules of ``garbage_collect_cached_blocks``, ``release_available_cached_blocks`` and ``release_cached_blocks`` of
c10/cuda/CUDACachingAllocator.cpp. Where a cudaMalloc block was split although it is oversize (expandable segments
were switched on while it was cached), PyTorch may cudaFree it with a live neighbour; here such a block is left alone.
"""

from __future__ import annotations

from oomscope.allocator.engine.blocks import SIZE_UNIT, free_block, is_split, rank_of, release_segment
from oomscope.allocator.engine.constants import *
from oomscope.allocator.engine.expandable import unmap
from oomscope.allocator.engine.memory import (
    Memory,
    after,
    ahead,
    at,
    drop_note,
    find,
    first,
    last,
    lower_bound,
    take_note,
)
from oomscope.allocator.engine.stats import log_block


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


def collect_garbage(m: Memory) -> None:
    """Free large segments that have lain unused the longest until ``reserved`` is at the threshold, if they suffice.

    A pass frees every unsplit segment whose age is at least the mean; it does not stop at the target. Unsplit
    expandable blocks weigh in the mean and are never freed.
    """
    if m[RESERVED] <= m[GC_BYTES]:
        return
    target = m[RESERVED] - m[GC_BYTES]
    total_age, count = _ages(m)
    reclaimed = 0
    freed = True
    while reclaimed < target and freed and count > 0:
        threshold = total_age / count
        freed = False
        stream = m[LOWEST_STREAM]
        while stream != NONE:
            of = stream + FREE_SETS + LARGE * SET_ROW
            position = first(m, of)
            while position != NONE:
                block = at(m, of, position)
                age = m[LARGE_CALLS] - m[block + AGE]
                if _is_whole_segment(m, block) and age >= threshold:
                    freed = True
                    reclaimed += m[block + SIZE]
                    total_age -= age
                    count -= 1
                    position = _release_and_step(m, of, position, block)
                else:
                    position = after(m, of, position)
            stream = m[stream + ABOVE]


def release_available(m: Memory, size: int, stream: int, pool: int) -> bool:
    """Free oversize cached segments of the stream for a request of ``size``; False if too little was found.

    The smallest block that alone suffices, else the largest ones down to ``max_split_size``. What was freed stays
    freed also when the sum falls short.
    """
    if m[MAX_SPLIT] == UNLIMITED:
        return False
    enough = max(size, m[MAX_SPLIT])
    of = stream + FREE_SETS + pool * SET_ROW
    position = lower_bound(m, of, enough // SIZE_UNIT)
    if position == NONE:
        position = last(m, of)
    else:
        block = at(m, of, position)
        if _is_whole_segment(m, block):
            release_segment(m, block)
            return True
        position = ahead(m, of, position)
    released = 0
    while position != NONE and released < enough:
        block = at(m, of, position)
        if m[block + SIZE] < m[MAX_SPLIT]:
            break
        position = ahead(m, of, position)
        if _is_whole_segment(m, block):
            released += m[block + SIZE]
            below = NONE if position == NONE else at(m, of, position)
            release_segment(m, block)
            position = NONE if below == NONE else find(m, of, rank_of(m, below), below)
    return released >= enough


def release_cached(m: Memory) -> None:
    """Wait for all events, then free every whole cached segment and unmap every whole cached page.

    Of private pools only those are touched that nothing uses any more.
    """
    wait_for_events(m)
    _release_pool(m, LARGE, m[LOWEST_STREAM])
    _release_pool(m, SMALL, m[LOWEST_STREAM])
    private = m[FIRST_POOL]
    while private != NONE:
        release_private(m, private)
        private = m[private + NEXT_POOL]


def release_private(m: Memory, private: int) -> None:
    """Give back what is cached of a private pool, unless it is in use."""
    if m[private + POOL_IN_USE] == 0:
        _release_pool(m, SMALL, m[private + LOWEST_OF_POOL])
        _release_pool(m, LARGE, m[private + LOWEST_OF_POOL])


def _release_pool(m: Memory, pool: int, lowest: int) -> None:
    """Free the whole segments of all streams from ``lowest`` on, then unmap the expandable blocks of all of them."""
    for expandable in range(2):
        stream = lowest
        while stream != NONE:
            of = stream + FREE_SETS + pool * SET_ROW
            position = first(m, of)
            while position != NONE:
                block = at(m, of, position)
                if expandable and m[block + PAGE] > 0:
                    position = _unmap_and_step(m, of, position, block)
                elif not expandable and _is_whole_segment(m, block):
                    position = _release_and_step(m, of, position, block)
                else:
                    position = after(m, of, position)
            stream = m[stream + ABOVE]


def _ages(m: Memory) -> tuple[int, int]:
    """Return the summed age and the number of the unsplit free blocks of the large pool."""
    total_age = 0
    count = 0
    stream = m[LOWEST_STREAM]
    while stream != NONE:
        of = stream + FREE_SETS + LARGE * SET_ROW
        position = first(m, of)
        while position != NONE:
            block = at(m, of, position)
            if not is_split(m, block):
                total_age += m[LARGE_CALLS] - m[block + AGE]
                count += 1
            position = after(m, of, position)
        stream = m[stream + ABOVE]
    return total_age, count


def _is_whole_segment(m: Memory, block: int) -> bool:
    return m[block + PAGE] == 0 and not is_split(m, block)


def _release_and_step(m: Memory, of: int, position: int, block: int) -> int:
    """Release the segment at ``position`` and return the position of the entry that followed it."""
    following = _following(m, of, position)
    release_segment(m, block)
    return NONE if following == NONE else find(m, of, rank_of(m, following), following)


def _unmap_and_step(m: Memory, of: int, position: int, block: int) -> int:
    """Unmap the block at ``position`` and return the position of the entry that followed it.

    What is left of the block is smaller than it was, hence before that entry, and holds no whole page.
    """
    following = _following(m, of, position)
    unmap(m, block)
    return NONE if following == NONE else find(m, of, rank_of(m, following), following)


def _following(m: Memory, of: int, position: int) -> int:
    position = after(m, of, position)
    return NONE if position == NONE else at(m, of, position)
