"""What the allocator gives back to the driver before it gives up: garbage, oversize blocks, everything cached.

Rules of ``garbage_collect_cached_blocks``, ``release_available_cached_blocks`` and ``release_cached_blocks`` of
c10/cuda/CUDACachingAllocator.cpp. Where a cudaMalloc block was split although it is oversize (expandable segments
were switched on while it was cached), PyTorch may cudaFree it with a live neighbour; here such a block is left alone.
"""

from __future__ import annotations

from oomscope.allocator.blocks import SIZE_UNIT, is_split, rank_of, release_segment
from oomscope.allocator.constants import (
    AGE,
    FREE_SETS,
    GC_BYTES,
    LARGE,
    LARGE_CALLS,
    MAX_SPLIT,
    NONE,
    PAGE,
    RESERVED,
    SETS_PER_STREAM,
    SIZE,
    SMALL,
    STREAM_AT,
    STREAM_ROW,
    STREAMS,
    UNLIMITED,
)
from oomscope.allocator.expandable import unmap
from oomscope.allocator.heap import Heap
from oomscope.allocator.sortedset import after, ahead, at, find, first, last, lower_bound
from oomscope.allocator.streams import wait_for_events


def collect_garbage(heap: Heap) -> None:
    """Free large segments that have lain unused the longest until ``reserved`` is at the threshold, if they suffice.

    A pass frees every unsplit segment whose age is at least the mean; it does not stop at the target. Unsplit
    expandable blocks weigh in the mean and are never freed.
    """
    n = heap.n
    if n[RESERVED] <= n[GC_BYTES]:
        return
    target = n[RESERVED] - n[GC_BYTES]
    total_age, count = _ages(heap)
    reclaimed = 0
    freed = True
    while reclaimed < target and freed and count > 0:
        threshold = total_age / count
        freed = False
        for turn in range(n[STREAMS]):
            which = heap.streams[turn * STREAM_ROW + STREAM_AT] * SETS_PER_STREAM + FREE_SETS + LARGE
            position = first(heap, which)
            while position != NONE:
                block = at(heap, which, position)
                age = n[LARGE_CALLS] - heap.blocks[block + AGE]
                if heap.blocks[block + PAGE] == 0 and not is_split(heap, block) and age >= threshold:
                    freed = True
                    reclaimed += heap.blocks[block + SIZE]
                    total_age -= age
                    count -= 1
                    position = _release_and_step(heap, which, position, block)
                else:
                    position = after(heap, which, position)


def release_available(heap: Heap, size: int, stream: int, pool: int) -> bool:
    """Free oversize cached segments of the stream for a request of ``size``; False if too little was found.

    The smallest block that alone suffices, else the largest ones down to ``max_split_size``. What was freed stays
    freed also when the sum falls short.
    """
    n = heap.n
    if n[MAX_SPLIT] == UNLIMITED:
        return False
    enough = max(size, n[MAX_SPLIT])
    which = stream * SETS_PER_STREAM + FREE_SETS + pool
    position = lower_bound(heap, which, enough // SIZE_UNIT)
    if position == NONE:
        position = last(heap, which)
    else:
        block = at(heap, which, position)
        if _is_whole_segment(heap, block):
            release_segment(heap, block)
            return True
        position = ahead(heap, which, position)
    released = 0
    while position != NONE and released < enough:
        block = at(heap, which, position)
        if heap.blocks[block + SIZE] < n[MAX_SPLIT]:
            break
        position = ahead(heap, which, position)
        if _is_whole_segment(heap, block):
            released += heap.blocks[block + SIZE]
            below = NONE if position == NONE else at(heap, which, position)
            release_segment(heap, block)
            position = NONE if below == NONE else find(heap, which, rank_of(heap, below), below)
    return released >= enough


def release_cached(heap: Heap) -> None:
    """Wait for all events, then free every whole cached segment and unmap every whole cached page."""
    wait_for_events(heap)
    _release_pool(heap, LARGE)
    _release_pool(heap, SMALL)


def _release_pool(heap: Heap, pool: int) -> None:
    for expandable in range(2):
        for turn in range(heap.n[STREAMS]):
            which = heap.streams[turn * STREAM_ROW + STREAM_AT] * SETS_PER_STREAM + FREE_SETS + pool
            position = first(heap, which)
            while position != NONE:
                block = at(heap, which, position)
                if expandable and heap.blocks[block + PAGE] > 0:
                    position = _unmap_and_step(heap, which, position, block)
                elif not expandable and _is_whole_segment(heap, block):
                    position = _release_and_step(heap, which, position, block)
                else:
                    position = after(heap, which, position)


def _ages(heap: Heap) -> tuple[int, int]:
    """Return the summed age and the number of the unsplit free blocks of the large pool."""
    total_age = 0
    count = 0
    for turn in range(heap.n[STREAMS]):
        which = heap.streams[turn * STREAM_ROW + STREAM_AT] * SETS_PER_STREAM + FREE_SETS + LARGE
        position = first(heap, which)
        while position != NONE:
            block = at(heap, which, position)
            if not is_split(heap, block):
                total_age += heap.n[LARGE_CALLS] - heap.blocks[block + AGE]
                count += 1
            position = after(heap, which, position)
    return total_age, count


def _is_whole_segment(heap: Heap, block: int) -> bool:
    return heap.blocks[block + PAGE] == 0 and not is_split(heap, block)


def _release_and_step(heap: Heap, which: int, position: int, block: int) -> int:
    """Release the segment at ``position`` and return the position of the entry that followed it."""
    following = _following(heap, which, position)
    release_segment(heap, block)
    return NONE if following == NONE else find(heap, which, rank_of(heap, following), following)


def _unmap_and_step(heap: Heap, which: int, position: int, block: int) -> int:
    """Unmap the block at ``position`` and return the position of the entry that followed it.

    What is left of the block is smaller than it was, hence before that entry, and holds no whole page.
    """
    following = _following(heap, which, position)
    unmap(heap, block)
    return NONE if following == NONE else find(heap, which, rank_of(heap, following), following)


def _following(heap: Heap, which: int, position: int) -> int:
    position = after(heap, which, position)
    return NONE if position == NONE else at(heap, which, position)
