"""Blocks: contiguous pieces of a segment that are allocated, free or unmapped; how they are made, joined and released.

Rules of c10/cuda/CUDACachingAllocator.cpp. What orders equally large free blocks changed twice: up to torch 2.11 the
address, in 2.12 a number given to every new block, from 2.13 on a number given to every new segment.
"""

from __future__ import annotations

from oomscope.allocator.engine.constants import *
from oomscope.allocator.engine.driver import discharge, paged, place, vacate
from oomscope.allocator.engine.memory import Memory, drop_block_row, insert, remove, take_block_row
from oomscope.allocator.engine.stats import log_block, lower_stat, lower_total, raise_stat
from oomscope.units import MiB

SIZE_UNIT = 512
"""Every block is a multiple of this; free blocks are ranked by their size in it."""


def new_segment(m: Memory, stream: int, pool: int, size: int, page: int) -> int:
    """Place a new segment (``page`` 0) or a wholly unmapped reservation, and return the block that covers it."""
    return segment_at(m, place(m, size), stream, pool, size, page)


def segment_at(  # noqa: PLR0917 - compiled functions take no keywords
    m: Memory, address: int, stream: int, pool: int, size: int, page: int
) -> int:
    """Return the block that covers a new segment, or a wholly unmapped reservation, at ``address``."""
    block = take_block_row(m)
    m[block + ADDRESS] = address
    m[block + SIZE] = size
    m[block + REQUESTED] = 0
    m[block + STREAM] = stream
    m[block + POOL] = pool
    m[block + PREV] = NONE
    m[block + NEXT] = NONE
    m[block + ALLOCATED] = 0
    m[block + MAPPED] = 0 if page else 1
    m[block + PAGE] = page
    m[block + BASE] = address
    m[block + RANGE] = m[RANGES_MADE]
    m[block + USES] = NONE
    m[block + PENDING] = 0
    m[block + TIE] = 0
    m[LONGEST_RANGE] = max(m[LONGEST_RANGE], size)
    m[RANGES_MADE] += 1
    if m[TIE_RULE] == TIE_BLOCK:
        m[BLOCKS_MADE] += 1
        m[block + TIE] = m[BLOCKS_MADE]
    elif m[TIE_RULE] == TIE_SEGMENT:
        m[SEGMENTS_MADE] += 1
        m[block + TIE] = m[SEGMENTS_MADE]
    return block


def new_part(m: Memory, whole: int, address: int, size: int) -> int:
    """Return a new, unlinked block that is a part of ``whole``'s segment."""
    block = take_block_row(m)
    m[block + ADDRESS] = address
    m[block + SIZE] = size
    m[block + REQUESTED] = 0
    m[block + STREAM] = m[whole + STREAM]
    m[block + POOL] = m[whole + POOL]
    m[block + ALLOCATED] = 0
    m[block + MAPPED] = m[whole + MAPPED]
    m[block + PAGE] = m[whole + PAGE]
    m[block + BASE] = m[whole + BASE]
    m[block + RANGE] = m[whole + RANGE]
    m[block + USES] = NONE
    m[block + PENDING] = 0
    m[block + TIE] = m[whole + TIE]
    if m[TIE_RULE] == TIE_BLOCK:
        m[BLOCKS_MADE] += 1
        m[block + TIE] = m[BLOCKS_MADE]
    return block


def link_before(m: Memory, block: int, successor: int) -> None:
    """Link ``block`` in between ``successor`` and the block before it."""
    predecessor = m[successor + PREV]
    m[block + PREV] = predecessor
    m[block + NEXT] = successor
    m[successor + PREV] = block
    if predecessor != NONE:
        m[predecessor + NEXT] = block


def link_after(m: Memory, block: int, predecessor: int) -> None:
    """Link ``block`` in between ``predecessor`` and the block after it."""
    successor = m[predecessor + NEXT]
    m[block + NEXT] = successor
    m[block + PREV] = predecessor
    m[predecessor + NEXT] = block
    if successor != NONE:
        m[successor + PREV] = block


def is_split(m: Memory, block: int) -> bool:
    """Return whether the block is only a part of its segment or reservation."""
    return m[block + PREV] != NONE or m[block + NEXT] != NONE


def is_idle(m: Memory, block: int) -> bool:
    """Return whether a block is neither allocated nor waiting for a stream."""
    return m[block + ALLOCATED] == 0 and m[block + PENDING] == 0


def set_of(m: Memory, block: int) -> int:
    """Return the sorted set that a free or unmapped block belongs to."""
    kind = FREE_SETS if m[block + MAPPED] else UNMAPPED_SETS
    return m[block + STREAM] + kind + m[block + POOL] * SET_ROW


def rank_of(m: Memory, block: int) -> int:
    """Return the rank of a block in its set: by size where it is mapped, by address where it is not."""
    if m[block + MAPPED]:
        return m[block + SIZE] // SIZE_UNIT
    return m[block + ADDRESS] // MiB


def put_free(m: Memory, block: int) -> None:
    """Put a mapped block into the free blocks of its pool and stream; its age counts from here."""
    m[block + AGE] = m[SMALL_CALLS + m[block + POOL]]
    insert(m, set_of(m, block), m[block + SIZE] // SIZE_UNIT, block)


def take_out(m: Memory, block: int) -> None:
    """Take a block out of the free or the unmapped ones."""
    remove(m, set_of(m, block), rank_of(m, block), block)


def try_merge(m: Memory, block: int, neighbour: int) -> int:
    """Join an idle neighbour, mapped as ``block`` is, into ``block``; return the bytes gained, 0 if not joined.

    ``block`` is in no set, and survives with its tie number.
    """
    if neighbour == NONE or not is_idle(m, neighbour):
        return 0
    if m[neighbour + MAPPED] != m[block + MAPPED]:
        return 0
    remove(m, set_of(m, block), rank_of(m, neighbour), neighbour)
    if m[block + PREV] == neighbour:
        m[block + ADDRESS] = m[neighbour + ADDRESS]
        beyond = m[neighbour + PREV]
        m[block + PREV] = beyond
        if beyond != NONE:
            m[beyond + NEXT] = block
    else:
        beyond = m[neighbour + NEXT]
        m[block + NEXT] = beyond
        if beyond != NONE:
            m[beyond + PREV] = block
    gained = m[neighbour + SIZE]
    m[block + SIZE] += gained
    drop_block_row(m, neighbour)
    return gained


def free_block(m: Memory, block: int) -> None:
    """Join a block that nothing waits for with its idle neighbours and put it into its pool."""
    pool = m[block + POOL]
    size = m[block + SIZE]
    requested = m[block + REQUESTED]
    joined = 0
    joined_bytes = try_merge(m, block, m[block + PREV])
    if joined_bytes > 0:
        joined = 1
    gained = try_merge(m, block, m[block + NEXT])
    if gained > 0:
        joined += 1
        joined_bytes += gained
    put_free(m, block)
    if m[block + PAGE] == 0:
        _count_inactive_split(m, block, pool, joined, joined_bytes)
    lower_stat(m, ACTIVE, pool, 1)
    lower_stat(m, ACTIVE_BYTES, pool, size)
    lower_stat(m, REQUESTED_BYTES, pool, requested)


def release_segment(m: Memory, block: int) -> None:
    """Give the segment that a free, unsplit block covers back to cudaFree."""
    size = m[block + SIZE]
    log_block(m, SEGMENT_FREE, block, m[block + ADDRESS], size)
    take_out(m, block)
    m[DEVICE_FREES] += 1
    m[RESERVED] -= size
    lower_stat(m, SEGMENT, m[block + POOL], 1)
    lower_stat(m, RESERVED_BYTES, m[block + POOL], size)
    if size >= m[MAX_SPLIT]:
        lower_total(m, OVERSIZE_SEGMENTS)
    discharge(m, paged(size))
    vacate(m, m[block + BASE])
    drop_block_row(m, block)


def _count_inactive_split(m: Memory, block: int, pool: int, joined: int, joined_bytes: int) -> None:
    """Account for a freed block of cudaMalloc: the net change, since PyTorch's peaks see only that."""
    split = is_split(m, block)
    change = (1 if split else 0) - joined
    if change > 0:
        raise_stat(m, INACTIVE_SPLIT, pool, change)
    elif change < 0:
        lower_stat(m, INACTIVE_SPLIT, pool, -change)
    change_bytes = (m[block + SIZE] if split else 0) - joined_bytes
    if change_bytes > 0:
        raise_stat(m, INACTIVE_SPLIT_BYTES, pool, change_bytes)
    elif change_bytes < 0:
        lower_stat(m, INACTIVE_SPLIT_BYTES, pool, -change_bytes)
