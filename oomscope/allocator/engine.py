"""The allocator's state machine: malloc, free and the ladder that a malloc climbs down when no free block serves it.

Rules of ``DeviceCachingAllocator`` of c10/cuda/CUDACachingAllocator.cpp. These are plain functions over a ``Heap``, so
that the same source runs as Python and compiled; blocks are row offsets, streams are rows.
"""

from __future__ import annotations

from oomscope.allocator.blocks import SIZE_UNIT, is_split, link_before, log_block, new_part, new_segment, put_free
from oomscope.allocator.constants import (
    ACTIVE,
    ACTIVE_BYTES,
    ADDRESS,
    ALLOCATED,
    ALLOCATED_BYTES,
    ALLOCATION,
    DEVICE_ALLOCS,
    DIVIDED,
    DIVISION_FIRST_LOG2,
    DIVISION_INTERVALS,
    DIVISIONS,
    EXPANDABLE,
    FREE_SETS,
    GC_BYTES,
    INACTIVE_SPLIT,
    INACTIVE_SPLIT_BYTES,
    LARGE,
    LARGE_SEGMENT,
    LIMIT,
    LOG_ACTION,
    LOG_ADDRESS,
    LOG_ALLOC_SIZE,
    LOG_BASE,
    LOG_LENGTH,
    LOG_OP,
    LOG_RANGE,
    LOG_ROW,
    LOG_SIZE,
    LOG_STREAM,
    MALLOCS,
    MAPPED,
    MAX_SPLIT,
    MIN_BLOCK,
    MIN_LARGE_ALLOC,
    NEXT,
    NON_SPLIT_ROUNDING,
    NONE,
    NULL_REQUEST,
    OOM,
    OOMS,
    OP,
    OUT_OF_MEMORY,
    OVERSIZE_ALLOCATIONS,
    OVERSIZE_SEGMENTS,
    PAGE,
    POOL,
    QUEUED,
    REQUESTED,
    REQUESTED_BYTES,
    RESERVED,
    RESERVED_BYTES,
    RETRIES,
    ROUND_LARGE,
    SEGMENT,
    SEGMENT_ALLOC,
    SETS_PER_STREAM,
    SIZE,
    SMALL,
    SMALL_CALLS,
    SMALL_SEGMENT,
    SMALL_SIZE,
    TOTAL,
    USES,
)
from oomscope.allocator.driver import charge, device_free
from oomscope.allocator.expandable import allocate_expandable
from oomscope.allocator.heap import Heap, Ints
from oomscope.allocator.reclaim import collect_garbage, release_available, release_cached
from oomscope.allocator.sortedset import after, at, lower_bound, remove_at
from oomscope.allocator.stats import lower_stat, lower_total, raise_stat, raise_total
from oomscope.allocator.streams import free_block, process_events, queue_events


def malloc(heap: Heap, request: int, stream: int) -> int:
    """Serve ``request`` bytes and return the block, or NULL_REQUEST (0 bytes), or OUT_OF_MEMORY (see the log)."""
    if request == 0:
        return NULL_REQUEST
    n = heap.n
    n[MALLOCS] += 1
    if n[QUEUED] > 0:
        process_events(heap)
    size = round_size(n, request)
    pool = SMALL if size <= SMALL_SIZE else LARGE
    block = _find_free(heap, size, stream, pool)
    if block == NONE:
        block = _obtain(heap, size, stream, pool)
    if block == NONE:
        n[OOMS] += 1
        _log_oom(heap, size, stream)
        return OUT_OF_MEMORY
    return _hand_out(heap, block, size, request)


def free(heap: Heap, block: int) -> None:
    """Free an allocated block, now or once the streams that it was recorded on are done with it."""
    n = heap.n
    row = heap.blocks
    pool = row[block + POOL]
    size = row[block + SIZE]
    lower_stat(n, ALLOCATION, pool, 1)
    lower_stat(n, ALLOCATED_BYTES, pool, size)
    row[block + ALLOCATED] = 0
    if size >= n[MAX_SPLIT]:
        lower_total(n, OVERSIZE_ALLOCATIONS, 1)
    if row[block + USES] != NONE:
        queue_events(heap, block)
    else:
        free_block(heap, block)


def round_size(n: Ints, request: int) -> int:
    """Return the size of the block that serves ``request`` bytes (``DeviceCachingAllocator::round_size``)."""
    if request < MIN_BLOCK:
        return MIN_BLOCK
    if n[DIVIDED]:
        floor_log2 = 9
        while request >> (floor_log2 + 1) > 0:
            floor_log2 += 1
        interval = min(max(floor_log2 - DIVISION_FIRST_LOG2, 0), DIVISION_INTERVALS - 1)
        divisions = n[DIVISIONS + interval]
        if divisions > 1 and request > MIN_BLOCK * divisions:
            step = (1 << floor_log2) // divisions
            return (request + step - 1) // step * step
    return (request + MIN_BLOCK - 1) // MIN_BLOCK * MIN_BLOCK


def segment_size(n: Ints, size: int) -> int:
    """Return what is asked of the driver for a block of ``size`` (``get_allocation_size``)."""
    if size <= SMALL_SIZE:
        return SMALL_SEGMENT
    if size < MIN_LARGE_ALLOC:
        return n[LARGE_SEGMENT]
    return (size + ROUND_LARGE - 1) // ROUND_LARGE * ROUND_LARGE


def _find_free(heap: Heap, size: int, stream: int, pool: int) -> int:
    """Return the best fitting free block of the stream, taken out of its set, or NONE (``get_free_block``)."""
    n = heap.n
    if n[GC_BYTES] != NONE:
        n[SMALL_CALLS + pool] += 1
    which = stream * SETS_PER_STREAM + FREE_SETS + pool
    position = lower_bound(heap, which, size // SIZE_UNIT)
    if position != NONE and heap.blocks[at(heap, which, position) + PAGE] > 0:
        position = _prefer_inner(heap, which, position) if n[EXPANDABLE] else _skip_expandable(heap, which, position)
    if position == NONE:
        return NONE
    block = at(heap, which, position)
    found = heap.blocks[block + SIZE]
    if found >= n[MAX_SPLIT] and (size < n[MAX_SPLIT] or found >= size + n[NON_SPLIT_ROUNDING]):
        return NONE
    remove_at(heap, which, position)
    return block


def _prefer_inner(heap: Heap, which: int, position: int) -> int:
    """Step past blocks at the growing end of a reservation while the next one, counted with its room, is smaller."""
    block = at(heap, which, position)
    while heap.blocks[block + PAGE] > 0:
        following = after(heap, which, position)
        if following == NONE:
            break
        candidate = at(heap, which, following)
        if _with_room(heap, candidate) >= _with_room(heap, block):
            break
        position = following
        block = candidate
    return position


def _with_room(heap: Heap, block: int) -> int:
    """Return the size that a block could grow to by mapping the unmapped block right behind it."""
    size = heap.blocks[block + SIZE]
    behind = heap.blocks[block + NEXT]
    if behind != NONE and heap.blocks[behind + MAPPED] == 0:
        size += heap.blocks[behind + SIZE]
    return size


def _skip_expandable(heap: Heap, which: int, position: int) -> int:
    """Return the first block from ``position`` on that came from cudaMalloc, or NONE."""
    while position != NONE and heap.blocks[at(heap, which, position) + PAGE] > 0:
        position = after(heap, which, position)
    return position


def _obtain(heap: Heap, size: int, stream: int, pool: int) -> int:
    """Get a block from the driver, giving back more and more of what is cached; NONE when all was in vain.

    As in PyTorch, the pool is not searched again after something was released.
    """
    n = heap.n
    if n[GC_BYTES] != NONE:
        collect_garbage(heap)
    block = _ask_driver(heap, size, stream, pool)
    if block == NONE and release_available(heap, size, stream, pool):
        block = _ask_driver(heap, size, stream, pool)
    if block == NONE:
        release_cached(heap)
        n[RETRIES] += 1
        block = _ask_driver(heap, size, stream, pool)
    return block


def _ask_driver(heap: Heap, size: int, stream: int, pool: int) -> int:
    """Return a block of at least ``size`` bytes from new pages or a new segment, or NONE (``alloc_block``)."""
    n = heap.n
    asked = segment_size(n, size)
    if n[LIMIT] != NONE and n[RESERVED] + asked > n[LIMIT]:
        return NONE
    if n[EXPANDABLE]:
        return allocate_expandable(heap, size, stream, pool)
    if not charge(n, asked, 1):
        return NONE
    block = new_segment(heap, stream, pool, asked, 0)
    n[RESERVED] += asked
    n[DEVICE_ALLOCS] += 1
    raise_stat(n, SEGMENT, pool, 1)
    raise_stat(n, RESERVED_BYTES, pool, asked)
    if asked >= n[MAX_SPLIT]:
        raise_total(n, OVERSIZE_SEGMENTS, 1)
    log_block(heap, SEGMENT_ALLOC, block, heap.blocks[block + ADDRESS], asked)
    return block


def _hand_out(heap: Heap, found: int, size: int, request: int) -> int:
    """Split what was found if the rest is worth keeping, and count the front part as allocated."""
    n = heap.n
    row = heap.blocks
    block = found
    pool = row[found + POOL]
    was_split = is_split(heap, found)
    counted = row[found + PAGE] == 0
    if _splits(n, pool, size, row[found + SIZE] - size):
        block = new_part(heap, found, row[found + ADDRESS], size)
        link_before(heap, block, found)
        row[found + ADDRESS] += size
        row[found + SIZE] -= size
        put_free(heap, found)
        if counted and was_split:
            lower_stat(n, INACTIVE_SPLIT_BYTES, pool, size)
        elif counted:
            raise_stat(n, INACTIVE_SPLIT_BYTES, pool, row[found + SIZE])
            raise_stat(n, INACTIVE_SPLIT, pool, 1)
    elif counted and was_split:
        lower_stat(n, INACTIVE_SPLIT_BYTES, pool, row[found + SIZE])
        lower_stat(n, INACTIVE_SPLIT, pool, 1)
    row[block + ALLOCATED] = 1
    row[block + REQUESTED] = request
    raise_stat(n, ALLOCATION, pool, 1)
    raise_stat(n, ALLOCATED_BYTES, pool, row[block + SIZE])
    raise_stat(n, ACTIVE, pool, 1)
    raise_stat(n, ACTIVE_BYTES, pool, row[block + SIZE])
    raise_stat(n, REQUESTED_BYTES, pool, request)
    if row[block + SIZE] >= n[MAX_SPLIT]:
        raise_total(n, OVERSIZE_ALLOCATIONS, 1)
    return block


def _splits(n: Ints, pool: int, size: int, rest: int) -> bool:
    """Say whether a block is split for ``size`` when ``rest`` would be left over (``should_split``)."""
    if pool == SMALL or n[EXPANDABLE]:
        return rest >= MIN_BLOCK
    return size < n[MAX_SPLIT] and rest > SMALL_SIZE


def _log_oom(heap: Heap, size: int, stream: int) -> None:
    """Append the failure: the free bytes of the device as address, its total or the limit as base."""
    n = heap.n
    at_ = n[LOG_LENGTH] * LOG_ROW
    heap.log[at_ + LOG_OP] = n[OP]
    heap.log[at_ + LOG_ACTION] = OOM
    heap.log[at_ + LOG_ADDRESS] = device_free(n)
    heap.log[at_ + LOG_SIZE] = size
    heap.log[at_ + LOG_STREAM] = stream
    heap.log[at_ + LOG_RANGE] = NONE
    heap.log[at_ + LOG_BASE] = n[TOTAL] if n[LIMIT] == NONE else n[LIMIT]
    heap.log[at_ + LOG_ALLOC_SIZE] = segment_size(n, size)
    n[LOG_LENGTH] += 1
