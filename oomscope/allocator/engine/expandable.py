"""Expandable segments: one address reservation per stream and pool, into which physical pages are mapped on demand.

Rules of ``ExpandableSegment``, ``find_expandable_block``, ``map_block`` and ``unmap_block`` of
c10/cuda/CUDACachingAllocator.cpp: pages of 2 MiB in the small pool and of ``large_segment_size`` in the large one,
mapped all or nothing per step, so that a failed request may leave earlier steps mapped.
"""

from __future__ import annotations

from oomscope.allocator.engine.blocks import (
    is_idle,
    is_split,
    link_after,
    link_before,
    new_part,
    new_segment,
    put_free,
    take_out,
    try_merge,
)
from oomscope.allocator.engine.constants import *
from oomscope.allocator.engine.driver import charge, discharge, paged, vacate
from oomscope.allocator.engine.memory import Memory, after, at, drop_block_row, first, insert
from oomscope.allocator.engine.stats import log_block, lower_stat, raise_stat
from oomscope.units import MiB


def allocate_expandable(m: Memory, size: int, stream: int, pool: int) -> int:
    """Map pages until some free block holds ``size`` bytes, and return it, taken out of its set; NONE on failure.

    What was mapped before a failure stays mapped.
    """
    block = _find_room(m, size, stream, pool)
    if block == NONE:
        return NONE
    if m[block + MAPPED] == 0 and not _map(m, block, min(m[block + SIZE], size)):
        return NONE
    while m[block + SIZE] < size:
        unmapped = m[block + NEXT]
        if unmapped == NONE or not _map(m, unmapped, min(size - m[block + SIZE], m[unmapped + SIZE])):
            return NONE
        block = unmapped
    take_out(m, block)
    return block


def unmap(m: Memory, block: int) -> None:
    """Give back the whole pages inside a free block, and its reservation once nothing of it is mapped.

    What lies in the block before the first and after the last whole page stays behind as free blocks.
    """
    page = m[block + PAGE]
    offset = m[block + ADDRESS] - m[block + BASE]
    start = m[block + BASE] + (offset + page - 1) // page * page
    end = m[block + BASE] + (offset + m[block + SIZE]) // page * page
    if end <= start:
        return
    take_out(m, block)
    before = start - m[block + ADDRESS]
    if before > 0:
        rest = new_part(m, block, m[block + ADDRESS], before)
        link_before(m, rest, block)
        put_free(m, rest)
    behind = m[block + SIZE] - before - (end - start)
    if behind > 0:
        rest = new_part(m, block, end, behind)
        link_after(m, rest, block)
        put_free(m, rest)
    m[block + ADDRESS] = start
    m[block + SIZE] = end - start
    m[block + MAPPED] = 0
    try_merge(m, block, m[block + PREV])
    try_merge(m, block, m[block + NEXT])
    put_unmapped(m, block)
    m[RESERVED] -= end - start
    lower_stat(m, RESERVED_BYTES, m[block + POOL], end - start)
    m[DEVICE_FREES] += 1
    discharge(m, (end - start) // page * paged(page))
    log_block(m, SEGMENT_UNMAP, block, start, end - start)
    if not is_split(m, block):
        _drop_reservation(m, block)


def _find_room(m: Memory, size: int, stream: int, pool: int) -> int:
    """Return the first of a run of idle blocks, at least one of them unmapped, that together hold ``size`` bytes.

    Where there is none, a new reservation; NONE where that would be too short and is given back.
    """
    which = stream + UNMAPPED_SETS + pool * SET_ROW
    position = first(m, which) if size <= m[LONGEST_RANGE] else NONE
    while position != NONE:
        block = at(m, which, position)
        if m[block + PREV] != NONE and is_idle(m, m[block + PREV]):
            block = m[block + PREV]
        if _idle_run(m, block, size) >= size:
            return block
        position = after(m, which, position)
    if m[FREES_SHORT] and reservation_size(m[TOTAL], page_of(m, pool)) < size:
        m[RANGES_MADE] += 1
        return NONE
    return _reserve(m, stream, pool)


def _idle_run(m: Memory, block: int, enough: int) -> int:
    """Return the bytes of the idle blocks from ``block`` on, counted until they are enough."""
    run = 0
    while run < enough and block != NONE and is_idle(m, block):
        run += m[block + SIZE]
        block = m[block + NEXT]
    return run


def _reserve(m: Memory, stream: int, pool: int) -> int:
    """Reserve addresses and return their one unmapped block."""
    page = page_of(m, pool)
    block = new_segment(m, stream, pool, reservation_size(m[TOTAL], page), page)
    put_unmapped(m, block)
    return block


def page_of(m: Memory, pool: int) -> int:
    """Return the bytes that are mapped at a time into a reservation for ``pool``."""
    return SMALL_SEGMENT if pool == SMALL else m[LARGE_SEGMENT]


def reservation_size(total: int, page: int) -> int:
    """Return the addresses of one reservation: 9/8 of the device's total, in whole pages."""
    return (total + total // 8 + page - 1) // page * page


def put_unmapped(m: Memory, block: int) -> None:
    """Put a block of which nothing is mapped into the unmapped ones of its pool and stream."""
    which = m[block + STREAM] + UNMAPPED_SETS + m[block + POOL] * SET_ROW
    insert(m, which, m[block + ADDRESS] // MiB, block)


def _map(m: Memory, block: int, size: int) -> bool:
    """Map the first ``size`` bytes of an unmapped block, up to whole pages, and join the free neighbours to it."""
    page = m[block + PAGE]
    start = m[block + ADDRESS]
    pages = (size + page - 1) // page
    if not charge(m, page, pages):
        return False
    take_out(m, block)
    m[block + MAPPED] = 1
    if pages * page < m[block + SIZE]:
        rest = new_part(m, block, start + pages * page, m[block + SIZE] - pages * page)
        m[rest + MAPPED] = 0
        link_after(m, rest, block)
        put_unmapped(m, rest)
        m[block + SIZE] = pages * page
    try_merge(m, block, m[block + PREV])
    try_merge(m, block, m[block + NEXT])
    put_free(m, block)
    m[RESERVED] += pages * page
    raise_stat(m, RESERVED_BYTES, m[block + POOL], pages * page)
    m[DEVICE_ALLOCS] += 1
    log_block(m, SEGMENT_MAP, block, start, pages * page)
    return True


def _drop_reservation(m: Memory, block: int) -> None:
    take_out(m, block)
    vacate(m, m[block + BASE])
    drop_block_row(m, block)
