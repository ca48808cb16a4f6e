"""What the allocator gives back to the driver before it gives up: garbage, oversize blocks, everything cached.

Of a private pool that is in use only a request made in it gives back oversize blocks; what else is cached there stays.

Rules of ``garbage_collect_cached_blocks``, ``release_available_cached_blocks`` and ``release_cached_blocks`` of
c10/cuda/CUDACachingAllocator.cpp. Where a cudaMalloc block was split although it is oversize (expandable segments
were switched on while it was cached), PyTorch may cudaFree it with a live neighbour; here such a block is left alone.
"""

from __future__ import annotations

from oomscope.allocator.blocks import SIZE_UNIT, is_split, rank_of, release_segment
from oomscope.allocator.constants import (
    ABOVE,
    AGE,
    FIRST_POOL,
    FREE_SETS,
    GC_BYTES,
    LARGE,
    LARGE_CALLS,
    LOWEST_OF_POOL,
    LOWEST_STREAM,
    MAX_SPLIT,
    NEXT_POOL,
    NONE,
    PAGE,
    POOL_IN_USE,
    RESERVED,
    SET_ROW,
    SIZE,
    SMALL,
    TIES,
    UNLIMITED,
)
from oomscope.allocator.expandable import unmap
from oomscope.allocator.memory import Memory
from oomscope.allocator.sortedset import after, ahead, at, find, first, last, lower_bound
from oomscope.allocator.streams import wait_for_events


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
    freed also when the sum falls short. Counted as a tie without a look at which blocks are equally large.
    """
    if m[MAX_SPLIT] == UNLIMITED:
        return False
    enough = max(size, m[MAX_SPLIT])
    of = stream + FREE_SETS + pool * SET_ROW
    m[TIES] += 1
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
