"""Blocks: contiguous pieces of a segment that are allocated, free or unmapped; how they are made, joined and released.

Rules of c10/cuda/CUDACachingAllocator.cpp. What orders equally large free blocks changed twice: up to torch 2.11 the
address, in 2.12 a number given to every new block, from 2.13 on a number given to every new segment.
"""

from __future__ import annotations

from oomscope.allocator.constants import (
    ADDRESS,
    AGE,
    ALLOCATED,
    BASE,
    BLOCKS_MADE,
    DEVICE_FREES,
    FREE_SETS,
    LOG_ACTION,
    LOG_ADDRESS,
    LOG_BASE,
    LOG_LENGTH,
    LOG_OP,
    LOG_RANGE,
    LOG_ROW,
    LOG_SIZE,
    LOG_STREAM,
    MAPPED,
    MAX_SPLIT,
    NEXT,
    NONE,
    OP,
    OVERSIZE_SEGMENTS,
    PAGE,
    PENDING,
    POOL,
    PREV,
    RANGE,
    RANGES,
    REQUESTED,
    RESERVED,
    RESERVED_BYTES,
    SEGMENT,
    SEGMENT_FREE,
    SEGMENTS_MADE,
    SETS_PER_STREAM,
    SIZE,
    SMALL_CALLS,
    STREAM,
    TIE,
    TIE_BLOCK,
    TIE_RULE,
    TIE_SEGMENT,
    UNMAPPED_SETS,
    USES,
)
from oomscope.allocator.driver import discharge, paged, place, vacate
from oomscope.allocator.heap import Heap, drop_row, take_row
from oomscope.allocator.sortedset import insert, remove
from oomscope.allocator.stats import lower_stat, lower_total
from oomscope.units import MiB

SIZE_UNIT = 512
"""Every block is a multiple of this; free blocks are ranked by their size in it."""


def new_segment(heap: Heap, stream: int, pool: int, size: int, page: int) -> int:
    """Place a new segment (``page`` 0) or a wholly unmapped reservation, and return the block that covers it."""
    n = heap.n
    address = place(heap, size)
    block = take_row(heap)
    row = heap.blocks
    row[block + ADDRESS] = address
    row[block + SIZE] = size
    row[block + REQUESTED] = 0
    row[block + STREAM] = stream
    row[block + POOL] = pool
    row[block + PREV] = NONE
    row[block + NEXT] = NONE
    row[block + ALLOCATED] = 0
    row[block + MAPPED] = 0 if page else 1
    row[block + PAGE] = page
    row[block + BASE] = address
    row[block + RANGE] = n[RANGES]
    row[block + USES] = NONE
    row[block + PENDING] = 0
    row[block + TIE] = 0
    n[RANGES] += 1
    if n[TIE_RULE] == TIE_BLOCK:
        n[BLOCKS_MADE] += 1
        row[block + TIE] = n[BLOCKS_MADE]
    elif n[TIE_RULE] == TIE_SEGMENT:
        n[SEGMENTS_MADE] += 1
        row[block + TIE] = n[SEGMENTS_MADE]
    return block


def new_part(heap: Heap, whole: int, address: int, size: int) -> int:
    """Return a new, unlinked block that is a part of ``whole``'s segment."""
    n = heap.n
    block = take_row(heap)
    row = heap.blocks
    row[block + ADDRESS] = address
    row[block + SIZE] = size
    row[block + REQUESTED] = 0
    row[block + STREAM] = row[whole + STREAM]
    row[block + POOL] = row[whole + POOL]
    row[block + ALLOCATED] = 0
    row[block + MAPPED] = row[whole + MAPPED]
    row[block + PAGE] = row[whole + PAGE]
    row[block + BASE] = row[whole + BASE]
    row[block + RANGE] = row[whole + RANGE]
    row[block + USES] = NONE
    row[block + PENDING] = 0
    row[block + TIE] = row[whole + TIE]
    if n[TIE_RULE] == TIE_BLOCK:
        n[BLOCKS_MADE] += 1
        row[block + TIE] = n[BLOCKS_MADE]
    return block


def link_before(heap: Heap, block: int, successor: int) -> None:
    """Link ``block`` in between ``successor`` and the block before it."""
    row = heap.blocks
    predecessor = row[successor + PREV]
    row[block + PREV] = predecessor
    row[block + NEXT] = successor
    row[successor + PREV] = block
    if predecessor != NONE:
        row[predecessor + NEXT] = block


def link_after(heap: Heap, block: int, predecessor: int) -> None:
    """Link ``block`` in between ``predecessor`` and the block after it."""
    row = heap.blocks
    successor = row[predecessor + NEXT]
    row[block + NEXT] = successor
    row[block + PREV] = predecessor
    row[predecessor + NEXT] = block
    if successor != NONE:
        row[successor + PREV] = block


def is_split(heap: Heap, block: int) -> bool:
    """Say whether the block is only a part of its segment or reservation."""
    return heap.blocks[block + PREV] != NONE or heap.blocks[block + NEXT] != NONE


def is_idle(heap: Heap, block: int) -> bool:
    """Say whether a block is neither allocated nor waiting for a stream."""
    row = heap.blocks
    return row[block + ALLOCATED] == 0 and row[block + PENDING] == 0 and row[block + USES] == NONE


def set_of(heap: Heap, block: int) -> int:
    """Return the sorted set that a free or unmapped block belongs to."""
    row = heap.blocks
    kind = FREE_SETS if row[block + MAPPED] else UNMAPPED_SETS
    return row[block + STREAM] * SETS_PER_STREAM + kind + row[block + POOL]


def rank_of(heap: Heap, block: int) -> int:
    """Return the rank of a block in its set: by size where it is mapped, by address where it is not."""
    row = heap.blocks
    if row[block + MAPPED]:
        return row[block + SIZE] // SIZE_UNIT
    return row[block + ADDRESS] // MiB


def put_free(heap: Heap, block: int) -> None:
    """Put a mapped block into the free blocks of its pool and stream; its age counts from here."""
    row = heap.blocks
    row[block + AGE] = heap.n[SMALL_CALLS + row[block + POOL]]
    insert(heap, set_of(heap, block), row[block + SIZE] // SIZE_UNIT, block)


def take_out(heap: Heap, block: int) -> None:
    """Take a block out of the free or the unmapped ones."""
    remove(heap, set_of(heap, block), rank_of(heap, block), block)


def try_merge(heap: Heap, block: int, neighbour: int) -> int:
    """Join an idle neighbour, mapped as ``block`` is, into ``block``; return the bytes gained, 0 if not joined.

    ``block`` is in no set, and survives with its tie number.
    """
    if neighbour == NONE or not is_idle(heap, neighbour):
        return 0
    row = heap.blocks
    if row[neighbour + MAPPED] != row[block + MAPPED]:
        return 0
    take_out(heap, neighbour)
    if row[block + PREV] == neighbour:
        row[block + ADDRESS] = row[neighbour + ADDRESS]
        beyond = row[neighbour + PREV]
        row[block + PREV] = beyond
        if beyond != NONE:
            row[beyond + NEXT] = block
    else:
        beyond = row[neighbour + NEXT]
        row[block + NEXT] = beyond
        if beyond != NONE:
            row[beyond + PREV] = block
    gained = row[neighbour + SIZE]
    row[block + SIZE] += gained
    drop_row(heap, neighbour)
    return gained


def release_segment(heap: Heap, block: int) -> None:
    """CudaFree the segment that a free, unsplit block covers."""
    n = heap.n
    row = heap.blocks
    size = row[block + SIZE]
    log_block(heap, SEGMENT_FREE, block, row[block + ADDRESS], size)
    take_out(heap, block)
    n[DEVICE_FREES] += 1
    n[RESERVED] -= size
    lower_stat(n, SEGMENT, row[block + POOL], 1)
    lower_stat(n, RESERVED_BYTES, row[block + POOL], size)
    if size >= n[MAX_SPLIT]:
        lower_total(n, OVERSIZE_SEGMENTS, 1)
    discharge(n, paged(size))
    vacate(heap, row[block + BASE])
    drop_row(heap, block)


def log_block(heap: Heap, action: int, block: int, address: int, size: int) -> None:
    """Append an event about ``size`` bytes at ``address`` in the segment of ``block``."""
    n = heap.n
    row = heap.blocks
    at = n[LOG_LENGTH] * LOG_ROW
    heap.log[at + LOG_OP] = n[OP]
    heap.log[at + LOG_ACTION] = action
    heap.log[at + LOG_ADDRESS] = address
    heap.log[at + LOG_SIZE] = size
    heap.log[at + LOG_STREAM] = row[block + STREAM]
    heap.log[at + LOG_RANGE] = row[block + RANGE]
    heap.log[at + LOG_BASE] = row[block + BASE]
    n[LOG_LENGTH] += 1
