"""The allocator's state machine: malloc, free, and the steps of a malloc that no free block serves.

Rules of ``DeviceCachingAllocator`` of c10/cuda/CUDACachingAllocator.cpp. These are plain functions over the memory, so
that the same source runs as Python and compiled; blocks and streams are offsets of their rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from oomscope.allocator.engine.blocks import (
    SIZE_UNIT,
    free_block,
    is_split,
    link_before,
    new_part,
    new_segment,
    put_free,
)
from oomscope.allocator.engine.constants import *
from oomscope.allocator.engine.driver import charge
from oomscope.allocator.engine.expandable import allocate_expandable
from oomscope.allocator.engine.memory import Memory, after, at, has_room, lower_bound, remove_at
from oomscope.allocator.engine.reclaim import (
    collect_garbage,
    make_events_ready,
    process_events,
    queue_events,
    record_stream,
    release_available,
    release_cached,
    release_private,
)
from oomscope.allocator.engine.stats import log_block, log_oom, lower_stat, lower_total, raise_stat, raise_total


class Ops(NamedTuple):
    """Operations and their outcomes, one entry each: lists, or arrays of int64 for the compiled engine.

    ``ids`` names an allocation from its MALLOC to its FREE and indexes ``rows``, the blocks behind the ids.
    ``streams`` are rows of streams, and of RELEASE_POOL and EMPTY_POOL the pool.
    ``addresses`` and ``placed``, the sizes of the blocks, stay as they were where nothing was allocated; ``placed`` is
    OUT_OF_MEMORY where that failed.
    """

    kinds: Memory
    ids: Memory
    sizes: Memory
    streams: Memory
    rows: Memory
    addresses: Memory
    placed: Memory


Run: TypeAlias = Callable[[Memory, Ops, int], int]


def malloc(m: Memory, request: int, stream: int) -> int:
    """Serve ``request`` bytes and return the block, or NULL_REQUEST (0 bytes), or OUT_OF_MEMORY (see the log)."""
    if request == 0:
        return NULL_REQUEST
    m[MALLOCS] += 1
    if m[QUEUED] > 0:
        process_events(m)
    size = round_size(m, request)
    pool = SMALL if size <= SMALL_SIZE else LARGE
    block = _find_free(m, size, stream, pool)
    if block == NONE:
        block = _obtain(m, size, stream, pool)
    if block == REJECTED:
        return OUT_OF_MEMORY
    if block == NONE:
        m[OOMS] += 1
        log_oom(m, size, segment_size(m, size), stream)
        return OUT_OF_MEMORY
    return _hand_out(m, block, size, request)


def malloc_in_pool(m: Memory, request: int, stream: int) -> int:
    """Serve a request in the pool of the row ``stream``; a private one is in use from here on."""
    private = m[stream + OWNER]
    if private != NONE:
        m[private + POOL_IN_USE] = 1
    return malloc(m, request, stream)


def free(m: Memory, block: int) -> None:
    """Free an allocated block, now or once the streams that it was recorded on are done with it."""
    pool = m[block + POOL]
    size = m[block + SIZE]
    lower_stat(m, ALLOCATION, pool, 1)
    lower_stat(m, ALLOCATED_BYTES, pool, size)
    m[block + ALLOCATED] = 0
    if size >= m[MAX_SPLIT]:
        lower_total(m, OVERSIZE_ALLOCATIONS)
    if m[block + USES] != NONE:
        queue_events(m, block)
    else:
        free_block(m, block)


def round_size(m: Memory, request: int) -> int:
    """Return the size of the block that serves ``request`` bytes (``DeviceCachingAllocator::round_size``)."""
    if request < MIN_BLOCK:
        return MIN_BLOCK
    if m[DIVIDED]:
        floor_log2 = 9
        while request >> (floor_log2 + 1) > 0:
            floor_log2 += 1
        interval = min(max(floor_log2 - DIVISION_FIRST_LOG2, 0), DIVISION_INTERVALS - 1)
        divisions = m[DIVISIONS + interval]
        if divisions > 1 and request > MIN_BLOCK * divisions:
            step = (1 << floor_log2) // divisions
            return (request + step - 1) // step * step
    return (request + MIN_BLOCK - 1) // MIN_BLOCK * MIN_BLOCK


def segment_size(m: Memory, size: int) -> int:
    """Return what is asked of the driver for a block of ``size`` (``get_allocation_size``)."""
    if size <= SMALL_SIZE:
        return SMALL_SEGMENT
    if size < MIN_LARGE_ALLOC:
        return m[LARGE_SEGMENT]
    return (size + ROUND_LARGE - 1) // ROUND_LARGE * ROUND_LARGE


def _find_free(m: Memory, size: int, stream: int, pool: int) -> int:
    """Return the best fitting free block of the stream, taken out of its set, or NONE (``get_free_block``)."""
    if m[GC_BYTES] != NONE and m[stream + OWNER] == NONE:
        m[SMALL_CALLS + pool] += 1
    of = stream + FREE_SETS + pool * SET_ROW
    position = lower_bound(m, of, size // SIZE_UNIT)
    if position != NONE and m[at(m, of, position) + PAGE] > 0:
        position = _prefer_inner(m, of, position) if m[EXPANDABLE] else _skip_expandable(m, of, position)
    if position == NONE:
        return NONE
    block = at(m, of, position)
    found = m[block + SIZE]
    if found >= m[MAX_SPLIT] and (size < m[MAX_SPLIT] or found >= size + m[NON_SPLIT_ROUNDING]):
        return NONE
    remove_at(m, of, position)
    return block


def _prefer_inner(m: Memory, of: int, position: int) -> int:
    """Step past blocks at the growing end of a reservation while the next one, counted with its room, is smaller."""
    block = at(m, of, position)
    following = after(m, of, position)
    while following != NONE:
        candidate = at(m, of, following)
        if m[block + PAGE] == 0 or _with_room(m, candidate) >= _with_room(m, block):
            break
        position = following
        block = candidate
        following = after(m, of, position)
    return position


def _with_room(m: Memory, block: int) -> int:
    """Return the size that a block could grow to by mapping the unmapped block right behind it."""
    size = m[block + SIZE]
    behind = m[block + NEXT]
    if behind != NONE and m[behind + MAPPED] == 0:
        size += m[behind + SIZE]
    return size


def _skip_expandable(m: Memory, of: int, position: int) -> int:
    """Return the first block from ``position`` on that came from cudaMalloc, or NONE."""
    while position != NONE and m[at(m, of, position) + PAGE] > 0:
        position = after(m, of, position)
    return position


def _obtain(m: Memory, size: int, stream: int, pool: int) -> int:
    """Get a block from the driver, giving back more and more of what is cached; NONE when that does not suffice.

    As in PyTorch, the pool is not searched again after something was released. Under ``throw_on_cudamalloc_oom``, and
    without a limit, a request that exceeds the whole device is REJECTED before anything is tried.
    """
    if m[THROW_ON_OOM] and m[LIMIT] == NONE and segment_size(m, size) > m[TOTAL]:
        return REJECTED
    if m[GC_BYTES] != NONE:
        collect_garbage(m)
    block = _ask_driver(m, size, stream, pool)
    if block == NONE and release_available(m, size, stream, pool):
        block = _ask_driver(m, size, stream, pool)
    if block == NONE and _may_retry(m, stream):
        release_cached(m)
        m[RETRIES] += 1
        block = _ask_driver(m, size, stream, pool)
    return block


def _may_retry(m: Memory, stream: int) -> bool:
    """Whether a request may wait for events and give back cached blocks: not while a graph is captured.

    A private pool is that of a capture or a ``MemPool``. Nothing can be captured on the default stream of CUDA.
    """
    return m[stream + OWNER] == NONE or (m[POOLS_RETRY] > 0 and m[stream + HANDLE] == DEFAULT_STREAM)


def _ask_driver(m: Memory, size: int, stream: int, pool: int) -> int:
    """Return a block of at least ``size`` bytes from new pages or a new segment, or NONE (``alloc_block``)."""
    asked = segment_size(m, size)
    if m[LIMIT] != NONE and m[RESERVED] + asked > m[LIMIT]:
        return NONE
    if m[EXPANDABLE]:
        return allocate_expandable(m, size, stream, pool)
    if not charge(m, asked, 1):
        return NONE
    block = new_segment(m, stream, pool, asked, 0)
    m[RESERVED] += asked
    m[DEVICE_ALLOCS] += 1
    raise_stat(m, SEGMENT, pool, 1)
    raise_stat(m, RESERVED_BYTES, pool, asked)
    if asked >= m[MAX_SPLIT]:
        raise_total(m, OVERSIZE_SEGMENTS)
    log_block(m, SEGMENT_ALLOC, block, m[block + ADDRESS], asked)
    return block


def _hand_out(m: Memory, found: int, size: int, request: int) -> int:
    """Split what was found if the rest is worth keeping, and count the front part as allocated."""
    block = found
    pool = m[found + POOL]
    was_split = is_split(m, found)
    counted = m[found + PAGE] == 0
    if _splits(m, pool, size, m[found + SIZE] - size):
        block = new_part(m, found, m[found + ADDRESS], size)
        link_before(m, block, found)
        m[found + ADDRESS] += size
        m[found + SIZE] -= size
        put_free(m, found)
        if counted and was_split:
            lower_stat(m, INACTIVE_SPLIT_BYTES, pool, size)
        elif counted:
            raise_stat(m, INACTIVE_SPLIT_BYTES, pool, m[found + SIZE])
            raise_stat(m, INACTIVE_SPLIT, pool, 1)
    elif counted and was_split:
        lower_stat(m, INACTIVE_SPLIT_BYTES, pool, m[found + SIZE])
        lower_stat(m, INACTIVE_SPLIT, pool, 1)
    m[block + ALLOCATED] = 1
    m[block + REQUESTED] = request
    raise_stat(m, ALLOCATION, pool, 1)
    raise_stat(m, ALLOCATED_BYTES, pool, m[block + SIZE])
    raise_stat(m, ACTIVE, pool, 1)
    raise_stat(m, ACTIVE_BYTES, pool, m[block + SIZE])
    raise_stat(m, REQUESTED_BYTES, pool, request)
    if m[block + SIZE] >= m[MAX_SPLIT]:
        raise_total(m, OVERSIZE_ALLOCATIONS)
    return block


def _splits(m: Memory, pool: int, size: int, rest: int) -> bool:
    """Return whether a block is split for ``size`` when ``rest`` would be left over (``should_split``)."""
    if pool == SMALL or m[EXPANDABLE]:
        return rest >= MIN_BLOCK
    return size < m[MAX_SPLIT] and rest > SMALL_SIZE


def run(m: Memory, ops: Ops, start: int) -> int:
    """Carry out ``ops`` from index ``start`` on; return the index of the first that lacked room.

    ``~index`` says that the operation at ``index`` allocates an id that is live.
    """
    for index in range(start, len(ops.kinds)):
        if not has_room(m):
            return index
        m[OP] = index
        kind = ops.kinds[index]
        block = ops.rows[ops.ids[index]]
        if kind == MALLOC:
            if block >= 0:
                return ~index
            block = malloc_in_pool(m, ops.sizes[index], ops.streams[index])
            ops.rows[ops.ids[index]] = block
            if block >= 0:
                ops.addresses[index] = m[block + ADDRESS]
                ops.placed[index] = m[block + SIZE]
            elif block == OUT_OF_MEMORY:
                ops.placed[index] = OUT_OF_MEMORY
        elif kind == FREE:
            if block >= 0:
                free(m, block)
            ops.rows[ops.ids[index]] = NONE
        elif kind == RECORD_STREAM:
            if block >= 0:
                record_stream(m, block, ops.streams[index])
        elif kind == SYNCHRONIZE:
            make_events_ready(m, ops.streams[index])
        else:
            _give_back(m, kind, ops.streams[index])
    return len(ops.kinds)


def _give_back(m: Memory, kind: int, private: int) -> None:
    """Empty the cache, or that of a private pool, or end the use of a private pool."""
    if kind == EMPTY_CACHE:
        release_cached(m)
    elif kind == RELEASE_POOL:
        m[private + POOL_IN_USE] = 0
    else:
        process_events(m)
        release_private(m, private)
