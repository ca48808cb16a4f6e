"""Ordered sets of blocks: sorted chunks of packed keys under a sorted directory, all in flat integer sequences.

An entry is one integer, ``rank << 30 | block``. Free blocks are ranked by their size in units of 512 bytes and, among
equals, by ``(TIE, ADDRESS)`` of the block; unmapped blocks by their address in MiB. A set is searched by bisection,
first over the first entries of its chunks, then within one chunk, and an insertion moves at most one chunk's entries.

A position is ``chunk's place in the directory * CHUNK + place in the chunk``; it holds until the set next changes.
"""

from __future__ import annotations

from oomscope.allocator.constants import ADDRESS, CHUNKS_FREE, CHUNKS_TOP, DIRECTORY_ROW, NONE, TIE
from oomscope.allocator.heap import Heap

CHUNK = 64
"""Integers in a chunk: how many entries it holds, then the entries."""
FULL = CHUNK - 1
HALF = CHUNK // 2
QUARTER = CHUNK // 4
BLOCK_BITS = 30
BLOCK_MASK = (1 << BLOCK_BITS) - 1


def _before(heap: Heap, key: int, rank: int, tie: int, address: int) -> bool:
    """Say whether the entry ``key`` comes before ``(rank, tie, address)``."""
    key_rank = key >> BLOCK_BITS
    if key_rank != rank:
        return key_rank < rank
    block = key & BLOCK_MASK
    if heap.blocks[block + TIE] != tie:
        return heap.blocks[block + TIE] < tie
    return heap.blocks[block + ADDRESS] < address


def _seek(heap: Heap, which: int, rank: int, tie: int, address: int) -> int:
    """Return the place of the first entry not before the key; it may lie just after the last entry of a chunk."""
    directory = which * heap.n[DIRECTORY_ROW]
    low = 1
    high = heap.directory[directory]
    if high == 0:
        return 0
    while low < high:
        middle = (low + high) >> 1
        if _before(heap, heap.chunks[heap.directory[directory + 1 + middle] + 1], rank, tie, address):
            low = middle + 1
        else:
            high = middle
    place = low - 1
    chunk = heap.directory[directory + 1 + place]
    low = 0
    high = heap.chunks[chunk]
    while low < high:
        middle = (low + high) >> 1
        if _before(heap, heap.chunks[chunk + 1 + middle], rank, tie, address):
            low = middle + 1
        else:
            high = middle
    return place * CHUNK + low


def _settle(heap: Heap, which: int, position: int) -> int:
    """Return ``position``, moved to the next chunk if it lies after the last entry of its own; NONE at the end."""
    directory = which * heap.n[DIRECTORY_ROW]
    count = heap.directory[directory]
    place = position // CHUNK
    if place >= count:
        return NONE
    if position % CHUNK < heap.chunks[heap.directory[directory + 1 + place]]:
        return position
    if place + 1 < count:
        return (place + 1) * CHUNK
    return NONE


def first(heap: Heap, which: int) -> int:
    """Return the position of the first entry, or NONE."""
    return _settle(heap, which, 0)


def last(heap: Heap, which: int) -> int:
    """Return the position of the last entry, or NONE."""
    directory = which * heap.n[DIRECTORY_ROW]
    count = heap.directory[directory]
    if count == 0:
        return NONE
    return (count - 1) * CHUNK + heap.chunks[heap.directory[directory + count]] - 1


def after(heap: Heap, which: int, position: int) -> int:
    """Return the position that follows, or NONE."""
    return _settle(heap, which, position + 1)


def ahead(heap: Heap, which: int, position: int) -> int:
    """Return the position that precedes, or NONE."""
    if position % CHUNK > 0:
        return position - 1
    place = position // CHUNK
    if place == 0:
        return NONE
    return (place - 1) * CHUNK + heap.chunks[heap.directory[which * heap.n[DIRECTORY_ROW] + place]] - 1


def at(heap: Heap, which: int, position: int) -> int:
    """Return the block at ``position``."""
    chunk = heap.directory[which * heap.n[DIRECTORY_ROW] + 1 + position // CHUNK]
    return heap.chunks[chunk + 1 + position % CHUNK] & BLOCK_MASK


def lower_bound(heap: Heap, which: int, rank: int) -> int:
    """Return the position of the first entry of ``rank`` or more, or NONE."""
    return _settle(heap, which, _seek(heap, which, rank, NONE, NONE))


def find(heap: Heap, which: int, rank: int, block: int) -> int:
    """Return the position of ``block``, which the set holds under ``rank``."""
    position = _seek(heap, which, rank, heap.blocks[block + TIE], heap.blocks[block + ADDRESS])
    return _settle(heap, which, position)


def insert(heap: Heap, which: int, rank: int, block: int) -> None:
    """Put ``block`` into the set under ``rank``."""
    directory = which * heap.n[DIRECTORY_ROW]
    if heap.directory[directory] == 0:
        chunk = _take_chunk(heap)
        heap.directory[directory] = 1
        heap.directory[directory + 1] = chunk
        heap.chunks[chunk] = 1
        heap.chunks[chunk + 1] = rank << BLOCK_BITS | block
        return
    position = _seek(heap, which, rank, heap.blocks[block + TIE], heap.blocks[block + ADDRESS])
    place = position // CHUNK
    within = position % CHUNK
    chunk = heap.directory[directory + 1 + place]
    if heap.chunks[chunk] == FULL:
        _split_chunk(heap, directory, place)
        if within > HALF:
            within -= HALF
            chunk = heap.directory[directory + 2 + place]
    fill = heap.chunks[chunk]
    chunks = heap.chunks
    for i in range(chunk + fill, chunk + within, -1):
        chunks[i + 1] = chunks[i]
    chunks[chunk + 1 + within] = rank << BLOCK_BITS | block
    chunks[chunk] = fill + 1


def remove(heap: Heap, which: int, rank: int, block: int) -> None:
    """Take ``block``, which the set holds under ``rank``, out of it."""
    remove_at(heap, which, find(heap, which, rank, block))


def remove_at(heap: Heap, which: int, position: int) -> None:
    """Take the entry at ``position`` out of the set."""
    directory = which * heap.n[DIRECTORY_ROW]
    place = position // CHUNK
    chunk = heap.directory[directory + 1 + place]
    fill = heap.chunks[chunk] - 1
    chunks = heap.chunks
    for i in range(chunk + 1 + position % CHUNK, chunk + 1 + fill):
        chunks[i] = chunks[i + 1]
    chunks[chunk] = fill
    if fill < QUARTER:
        _thin(heap, directory, place)


def _thin(heap: Heap, directory: int, place: int) -> None:
    """Join a nearly empty chunk with a neighbour where both fit into half a chunk; drop it when it is empty."""
    count = heap.directory[directory]
    fill = heap.chunks[heap.directory[directory + 1 + place]]
    if fill == 0:
        _drop_chunk(heap, directory, place)
    elif place + 1 < count and fill + heap.chunks[heap.directory[directory + 2 + place]] <= HALF:
        _join_chunks(heap, directory, place)
    elif place > 0 and fill + heap.chunks[heap.directory[directory + place]] <= HALF:
        _join_chunks(heap, directory, place - 1)


def _join_chunks(heap: Heap, directory: int, place: int) -> None:
    """Move the entries of the chunk after ``place`` to the end of the chunk at ``place``."""
    target = heap.directory[directory + 1 + place]
    source = heap.directory[directory + 2 + place]
    fill = heap.chunks[target]
    more = heap.chunks[source]
    for i in range(1, more + 1):
        heap.chunks[target + fill + i] = heap.chunks[source + i]
    heap.chunks[target] = fill + more
    _drop_chunk(heap, directory, place + 1)


def _split_chunk(heap: Heap, directory: int, place: int) -> None:
    """Move the upper part of a full chunk to a new one right after it."""
    chunk = heap.directory[directory + 1 + place]
    fresh = _take_chunk(heap)
    moved = heap.chunks[chunk] - HALF
    for i in range(1, moved + 1):
        heap.chunks[fresh + i] = heap.chunks[chunk + HALF + i]
    heap.chunks[fresh] = moved
    heap.chunks[chunk] = HALF
    count = heap.directory[directory]
    for i in range(directory + count, directory + 1 + place, -1):
        heap.directory[i + 1] = heap.directory[i]
    heap.directory[directory + 2 + place] = fresh
    heap.directory[directory] = count + 1


def _take_chunk(heap: Heap) -> int:
    chunk = heap.n[CHUNKS_FREE]
    if chunk != NONE:
        heap.n[CHUNKS_FREE] = heap.chunks[chunk + 1]
        return chunk
    chunk = heap.n[CHUNKS_TOP]
    heap.n[CHUNKS_TOP] = chunk + CHUNK
    return chunk


def _drop_chunk(heap: Heap, directory: int, place: int) -> None:
    chunk = heap.directory[directory + 1 + place]
    count = heap.directory[directory] - 1
    for i in range(directory + 1 + place, directory + 1 + count):
        heap.directory[i] = heap.directory[i + 1]
    heap.directory[directory] = count
    heap.chunks[chunk + 1] = heap.n[CHUNKS_FREE]
    heap.n[CHUNKS_FREE] = chunk
