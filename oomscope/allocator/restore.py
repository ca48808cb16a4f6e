"""An allocator in the middle of its life: segments and blocks put back as a snapshot shows them.

The inverse of ``segments()``. What no snapshot holds is not restored: when a block was freed (the ages of garbage
collection begin anew) and, from torch 2.12 on, which of the older segments and blocks was made first: they count in
the order of ``range``, then of addresses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from oomscope.allocator.engine.blocks import is_split, link_before, new_part, put_free, segment_at
from oomscope.allocator.engine.constants import *
from oomscope.allocator.engine.driver import charge, insert_range, paged
from oomscope.allocator.engine.expandable import page_of, put_unmapped, reservation_size
from oomscope.allocator.engine.memory import Memory, grow, has_room
from oomscope.allocator.engine.stats import raise_stat, raise_total
from oomscope.allocator.views import AllocatorBlock, AllocatorSegment
from oomscope.errors import UsageError
from oomscope.units import format_size


def restore(m: Memory, segments: Sequence[AllocatorSegment], streams: Mapping[tuple[int, int], int]) -> dict[int, int]:
    """Put ``segments`` into the memory, a list, of an allocator that has not served anything.

    Runs of one reservation have the same ``range``; ``streams`` has the row of each stream, by pool (0: the default
    one) and handle. Returned is the row of each allocated block, by address.

    Raises:
        UsageError: blocks do not tile their segment or wait for a stream, or the device is too small.
    """
    rows: dict[int, int] = {}
    for runs in _by_range(segments):
        for segment in runs:
            _check(segment)
        pool = SMALL if runs[0].segment_type == "small" else LARGE
        stream = streams[runs[0].pool, runs[0].stream]
        _grow(m)
        if runs[0].is_expandable:
            rows |= _reservation(m, runs, stream, pool)
        else:
            rows |= _segment(m, runs[0], stream, pool)
    return {address: row for address, row in rows.items() if m[row + ALLOCATED]}


def _by_range(segments: Sequence[AllocatorSegment]) -> list[list[AllocatorSegment]]:
    """Return segments of cudaMalloc one by one, and the runs of each reservation together, in order of creation."""
    groups: dict[tuple[int, int], list[AllocatorSegment]] = {}
    for segment in sorted(segments, key=lambda segment: (segment.range, segment.address)):
        key = (segment.range, -1 if segment.is_expandable else segment.address)
        groups.setdefault(key, []).append(segment)
    return list(groups.values())


def _check(segment: AllocatorSegment) -> None:
    edges = [(block.address, block.address + block.size) for block in segment.blocks]
    tiled = all(end == start for (_, end), (start, _) in pairwise(edges))
    if not edges or not tiled or edges[0][0] != segment.address or edges[-1][1] - edges[0][0] != segment.total_size:
        raise UsageError(f"blocks do not tile the segment at {segment.address:#x}", remedy="give all of its blocks")
    if any(block.state == "active_pending_free" for block in segment.blocks):
        raise UsageError(
            f"a block of the segment at {segment.address:#x} waits for an unknown stream",
            remedy="restore it as allocated, record the stream and free it",
        )


def _segment(m: Memory, segment: AllocatorSegment, stream: int, pool: int) -> dict[int, int]:
    size = segment.total_size
    _charge(m, size, 1)
    whole = segment_at(m, segment.address, stream, pool, size, 0)
    _take_addresses(m, segment.address, size)
    m[RESERVED] += size
    m[DEVICE_ALLOCS] += 1
    raise_stat(m, SEGMENT, pool, 1)
    raise_stat(m, RESERVED_BYTES, pool, size)
    if size >= m[MAX_SPLIT]:
        raise_total(m, OVERSIZE_SEGMENTS)
    rows = {}
    for block in segment.blocks[:-1]:
        rows[block.address] = _restore_block(m, _front(m, whole, block.size), block)
    rows[segment.blocks[-1].address] = _restore_block(m, whole, segment.blocks[-1])
    return rows


def _reservation(m: Memory, runs: Sequence[AllocatorSegment], stream: int, pool: int) -> dict[int, int]:
    page = page_of(m, pool)
    base = runs[0].address - runs[0].offset
    end = runs[-1].address + runs[-1].total_size
    size = max(reservation_size(m[TOTAL], page), (end - base + page - 1) // page * page)
    rest = segment_at(m, base, stream, pool, size, page)
    _take_addresses(m, base, size)
    rows = {}
    for run in runs:
        pages = (run.total_size + page - 1) // page
        _charge(m, page, pages)
        m[RESERVED] += run.total_size
        m[DEVICE_ALLOCS] += 1
        raise_stat(m, RESERVED_BYTES, pool, run.total_size)
        if run.address > m[rest + ADDRESS]:
            put_unmapped(m, _front(m, rest, run.address - m[rest + ADDRESS]))
        for block in run.blocks:
            row = rest if block.size == m[rest + SIZE] else _front(m, rest, block.size)
            m[row + MAPPED] = 1
            rows[block.address] = _restore_block(m, row, block)
    if m[rest + MAPPED] == 0:
        put_unmapped(m, rest)
    return rows


def _front(m: Memory, whole: int, size: int) -> int:
    """Cut ``size`` bytes off the front of a block that is in no set, and return them as a block."""
    _grow(m)
    part = new_part(m, whole, m[whole + ADDRESS], size)
    link_before(m, part, whole)
    m[whole + ADDRESS] += size
    m[whole + SIZE] -= size
    return part


def _restore_block(m: Memory, row: int, block: AllocatorBlock) -> int:
    """Restore a mapped block to the state of ``block``, and count it."""
    pool = m[row + POOL]
    if block.state == "inactive":
        put_free(m, row)
        if m[row + PAGE] == 0 and is_split(m, row):
            raise_stat(m, INACTIVE_SPLIT, pool, 1)
            raise_stat(m, INACTIVE_SPLIT_BYTES, pool, block.size)
        return row
    m[row + ALLOCATED] = 1
    m[row + REQUESTED] = block.requested_size
    raise_stat(m, ALLOCATION, pool, 1)
    raise_stat(m, ALLOCATED_BYTES, pool, block.size)
    raise_stat(m, ACTIVE, pool, 1)
    raise_stat(m, ACTIVE_BYTES, pool, block.size)
    raise_stat(m, REQUESTED_BYTES, pool, block.requested_size)
    if block.size >= m[MAX_SPLIT]:
        raise_total(m, OVERSIZE_ALLOCATIONS)
    return row


def _charge(m: Memory, page: int, pages: int) -> None:
    if not charge(m, page, pages):
        size = format_size(page * pages)
        raise UsageError(f"the device is too small for a segment of {size} that it is to hold", remedy="give it more")


def _take_addresses(m: Memory, address: int, size: int) -> None:
    if m[POLICY] == POLICY_DOWN:
        m[NEXT_ADDRESS] = min(m[NEXT_ADDRESS], address)
        return
    if m[POLICY] == POLICY_FIRST_FIT:
        index = 0
        while index < m[RANGES_LIVE] and m[m[RANGES] + 2 * index] < address:
            index += 1
        insert_range(m, index, address, paged(size))
    m[NEXT_ADDRESS] = max(m[NEXT_ADDRESS], paged(address + size))


def _grow(m: Memory) -> None:
    if not has_room(m):
        grow(m)
