"""Expandable segments: one address reservation per stream and pool, into which physical pages are mapped on demand.

Rules of ``ExpandableSegment``, ``find_expandable_block``, ``map_block`` and ``unmap_block`` of
c10/cuda/CUDACachingAllocator.cpp: pages of 2 MiB in the small pool and of ``large_segment_size`` in the large one,
mapped all or nothing per step, so that a failed request may leave earlier steps mapped.
"""

from __future__ import annotations

from oomscope.allocator.blocks import (
    is_idle,
    is_split,
    link_after,
    link_before,
    log_block,
    new_part,
    new_segment,
    put_free,
    take_out,
    try_merge,
)
from oomscope.allocator.constants import (
    ADDRESS,
    BASE,
    DEVICE_ALLOCS,
    DEVICE_FREES,
    LARGE_SEGMENT,
    MAPPED,
    NEXT,
    NONE,
    PAGE,
    POOL,
    PREV,
    RESERVED,
    RESERVED_BYTES,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    SETS_PER_STREAM,
    SIZE,
    SMALL,
    SMALL_SEGMENT,
    STREAM,
    TOTAL,
    UNMAPPED_SETS,
)
from oomscope.allocator.driver import charge, discharge, paged, vacate
from oomscope.allocator.heap import Heap, drop_row
from oomscope.allocator.sortedset import after, at, first, insert
from oomscope.allocator.stats import lower_stat, raise_stat
from oomscope.units import MiB


def allocate_expandable(heap: Heap, size: int, stream: int, pool: int) -> int:
    """Map pages until some free block holds ``size`` bytes, and return it, taken out of its set; NONE on failure.

    What was mapped before a failure stays mapped.
    """
    row = heap.blocks
    block = _find_room(heap, size, stream, pool)
    if row[block + MAPPED] == 0 and not _map(heap, block, min(row[block + SIZE], size)):
        return NONE
    while row[block + SIZE] < size:
        unmapped = row[block + NEXT]
        if unmapped == NONE or not _map(heap, unmapped, min(size - row[block + SIZE], row[unmapped + SIZE])):
            return NONE
        block = unmapped
    take_out(heap, block)
    return block


def unmap(heap: Heap, block: int) -> None:
    """Give back the whole pages inside a free block, and its reservation once nothing of it is mapped.

    What lies in the block before the first and after the last whole page stays behind as free blocks.
    """
    n = heap.n
    row = heap.blocks
    page = row[block + PAGE]
    offset = row[block + ADDRESS] - row[block + BASE]
    start = row[block + BASE] + (offset + page - 1) // page * page
    end = row[block + BASE] + (offset + row[block + SIZE]) // page * page
    if end <= start:
        return
    take_out(heap, block)
    before = start - row[block + ADDRESS]
    if before > 0:
        rest = new_part(heap, block, row[block + ADDRESS], before)
        link_before(heap, rest, block)
        put_free(heap, rest)
    behind = row[block + SIZE] - before - (end - start)
    if behind > 0:
        rest = new_part(heap, block, end, behind)
        link_after(heap, rest, block)
        put_free(heap, rest)
    row[block + ADDRESS] = start
    row[block + SIZE] = end - start
    row[block + MAPPED] = 0
    try_merge(heap, block, row[block + PREV])
    try_merge(heap, block, row[block + NEXT])
    _put_unmapped(heap, block)
    n[RESERVED] -= end - start
    lower_stat(n, RESERVED_BYTES, row[block + POOL], end - start)
    n[DEVICE_FREES] += 1
    discharge(n, (end - start) // page * paged(page))
    log_block(heap, SEGMENT_UNMAP, block, start, end - start)
    if not is_split(heap, block):
        _drop_reservation(heap, block)


def _find_room(heap: Heap, size: int, stream: int, pool: int) -> int:
    """Return the first of a run of idle blocks, at least one of them unmapped, that together hold ``size`` bytes."""
    row = heap.blocks
    which = stream * SETS_PER_STREAM + UNMAPPED_SETS + pool
    position = first(heap, which)
    while position != NONE:
        block = at(heap, which, position)
        if row[block + PREV] != NONE and is_idle(heap, row[block + PREV]):
            block = row[block + PREV]
        if _idle_run(heap, block, size) >= size:
            return block
        position = after(heap, which, position)
    return _reserve(heap, stream, pool)


def _idle_run(heap: Heap, block: int, enough: int) -> int:
    """Return the bytes of the idle blocks from ``block`` on, counted until they are enough."""
    run = 0
    while run < enough and block != NONE and is_idle(heap, block):
        run += heap.blocks[block + SIZE]
        block = heap.blocks[block + NEXT]
    return run


def _reserve(heap: Heap, stream: int, pool: int) -> int:
    """Reserve addresses for 9/8 of the device, in whole pages, and return their one unmapped block."""
    n = heap.n
    page = SMALL_SEGMENT if pool == SMALL else n[LARGE_SEGMENT]
    size = (n[TOTAL] + n[TOTAL] // 8 + page - 1) // page * page
    block = new_segment(heap, stream, pool, size, page)
    _put_unmapped(heap, block)
    return block


def _put_unmapped(heap: Heap, block: int) -> None:
    row = heap.blocks
    which = row[block + POOL] + row[block + STREAM] * SETS_PER_STREAM + UNMAPPED_SETS
    insert(heap, which, row[block + ADDRESS] // MiB, block)


def _map(heap: Heap, block: int, size: int) -> bool:
    """Map the first ``size`` bytes of an unmapped block, up to whole pages, and join the free neighbours to it."""
    n = heap.n
    row = heap.blocks
    page = row[block + PAGE]
    start = row[block + ADDRESS]
    pages = (size + page - 1) // page
    if not charge(n, page, pages):
        return False
    take_out(heap, block)
    row[block + MAPPED] = 1
    if pages * page < row[block + SIZE]:
        rest = new_part(heap, block, start + pages * page, row[block + SIZE] - pages * page)
        row[rest + MAPPED] = 0
        link_after(heap, rest, block)
        _put_unmapped(heap, rest)
        row[block + SIZE] = pages * page
    try_merge(heap, block, row[block + PREV])
    try_merge(heap, block, row[block + NEXT])
    put_free(heap, block)
    n[RESERVED] += pages * page
    raise_stat(n, RESERVED_BYTES, row[block + POOL], pages * page)
    n[DEVICE_ALLOCS] += 1
    log_block(heap, SEGMENT_MAP, block, start, pages * page)
    return True


def _drop_reservation(heap: Heap, block: int) -> None:
    take_out(heap, block)
    vacate(heap, heap.blocks[block + BASE])
    drop_row(heap, block)
