"""The emulator's memory: one flat sequence of integers that holds every block, free set, queue, counter and event.

It starts with the scalars of ``constants.py``; everything else is a record taken from what lies beyond ``m[TOP]`` or
from a chain of records given back, and is named by its offset. It is a Python list where the engine runs as Python
(indexing a numpy array from there costs several times as much), a numpy array where it runs compiled; the engine does
not know which. The sequence grows at its end, and only between operations: before each one ``has_room`` says whether
whatever it might do still fits.

Free and unmapped blocks are in ordered sets: sorted chunks of packed keys under a sorted directory. An entry is one
integer, ``rank << 30 | block``. Free blocks are ranked by their size in units of 512 bytes and, among equals, by
``(TIE, ADDRESS)`` of the block; unmapped blocks by their address in MiB. A set is searched by bisection,
first over the first entries of its chunks, then within one chunk, and an insertion moves at most one chunk's entries.
Chunks that run nearly empty are joined, so that two neighbours hold a quarter of a chunk or more between them.

A position is ``place of the chunk in the directory * CHUNK + place in the chunk``; it holds until the set next changes.
"""

from __future__ import annotations

from typing import TypeAlias

from oomscope.allocator.engine.constants import *

Memory: TypeAlias = list[int]
"""A list of ints, or a numpy array of int64 where the engine runs compiled."""

FIRST_RANGES = 64


def empty_memory() -> Memory:
    """Return the memory, a list, of an allocator that has no stream, no settings and no device yet."""
    m = [0] * SCALARS
    m[TOP] = SCALARS
    m[FREE_BLOCK_ROWS] = m[FREE_CHUNKS] = m[FREE_NOTES] = m[FIRST_POOL] = NONE
    return m


def space_needed(m: Memory) -> int:
    """Return the integers that one more operation may take.

    An operation adds a few blocks of its own; unmapping leaves at most two more of each block that it visits. A block
    in a set takes up at most a seventh of a chunk and a little of a directory.
    """
    blocks = 2 * m[BLOCKS_LIVE] + 16
    in_sets = (3 * m[BLOCKS_LIVE] + 16) // 7 + 4 * m[STREAMS_LIVE]
    return blocks * BLOCK_ROW + in_sets * (CHUNK + 4) + NOTE_ROW + 256


def events_needed(m: Memory) -> int:
    """Return the rows of the log that one more operation may take."""
    return 2 * m[BLOCKS_LIVE] + m[NOTES_LIVE] + 16


def has_room(m: Memory) -> bool:
    """Return whether any single operation fits into the sequence as it is."""
    return (
        m[TOP] + space_needed(m) <= len(m)
        and m[LOG_LENGTH] + events_needed(m) <= m[LOG_CAPACITY]
        and m[RANGES_LIVE] + 4 <= m[RANGES_CAPACITY]
    )


def take_block_row(m: Memory) -> int:
    """Return a row for a block."""
    m[BLOCKS_LIVE] += 1
    block = m[FREE_BLOCK_ROWS]
    if block != NONE:
        m[FREE_BLOCK_ROWS] = m[block + NEXT]
        return block
    return take(m, BLOCK_ROW)


def drop_block_row(m: Memory, block: int) -> None:
    """Give a block's row back."""
    m[BLOCKS_LIVE] -= 1
    m[block + NEXT] = m[FREE_BLOCK_ROWS]
    m[FREE_BLOCK_ROWS] = block


def take_chunk(m: Memory) -> int:
    """Return a chunk for a sorted set."""
    chunk = m[FREE_CHUNKS]
    if chunk != NONE:
        m[FREE_CHUNKS] = m[chunk]
        return chunk
    return take(m, CHUNK)


def drop_chunk(m: Memory, chunk: int) -> None:
    """Give a chunk back."""
    m[chunk] = m[FREE_CHUNKS]
    m[FREE_CHUNKS] = chunk


def take_note(m: Memory) -> int:
    """Return a row for a use of a block on another stream."""
    m[NOTES_LIVE] += 1
    note = m[FREE_NOTES]
    if note != NONE:
        m[FREE_NOTES] = m[note]
        return note
    return take(m, NOTE_ROW)


def drop_note(m: Memory, note: int) -> None:
    """Give a note's row back."""
    m[NOTES_LIVE] -= 1
    m[note] = m[FREE_NOTES]
    m[FREE_NOTES] = note


def take(m: Memory, length: int) -> int:
    """Return the offset of ``length`` integers never used before."""
    offset = m[TOP]
    m[TOP] = offset + length
    return offset


def length_wanted(m: Memory) -> int:
    """Return a length with room for another operation and, in proportion to what is in use, for many more."""
    ranges = 2 * _ranges_wanted(m) if _lacks_ranges(m) else 0
    log = LOG_ROW * _events_wanted(m) if _lacks_events(m) else 0
    return m[TOP] + ranges + log + 3 * space_needed(m)


def fill_room(m: Memory) -> None:
    """Move what has outgrown its place to a larger one, once the sequence has the length wanted."""
    if _lacks_ranges(m):
        reserve_ranges(m, _ranges_wanted(m))
    if _lacks_events(m):
        capacity = _events_wanted(m)
        m[LOG] = _moved(m, m[LOG], m[LOG_LENGTH] * LOG_ROW, capacity * LOG_ROW)
        m[LOG_CAPACITY] = capacity


def grow(m: Memory) -> None:
    """Make room for another operation, and many more, at the end of a list."""
    m.extend([0] * (length_wanted(m) - len(m)))
    fill_room(m)


def reserve_ranges(m: Memory, capacity: int) -> None:
    """Give the table of address ranges a larger place."""
    m[RANGES] = _moved(m, m[RANGES], 2 * m[RANGES_LIVE], 2 * capacity)
    m[RANGES_CAPACITY] = capacity


def _lacks_ranges(m: Memory) -> bool:
    return m[RANGES_LIVE] + 4 > m[RANGES_CAPACITY]


def _ranges_wanted(m: Memory) -> int:
    return 2 * m[RANGES_LIVE] + FIRST_RANGES


def _lacks_events(m: Memory) -> bool:
    return m[LOG_LENGTH] + events_needed(m) > m[LOG_CAPACITY]


def _events_wanted(m: Memory) -> int:
    return 2 * (m[LOG_LENGTH] + events_needed(m))


def _moved(m: Memory, old: int, used: int, length: int) -> int:
    """Return the offset of ``length`` fresh integers that begin with the ``used`` ones at ``old``."""
    fresh = take(m, length)
    m[fresh : fresh + used] = m[old : old + used]
    return fresh


FULL = CHUNK - 1
HALF = CHUNK // 2
QUARTER = CHUNK // 4
BLOCK_BITS = 30
BLOCK_MASK = (1 << BLOCK_BITS) - 1
FIRST_DIRECTORY = 8


def first(m: Memory, of: int) -> int:
    """Return the position of the first entry of the set ``of``, or NONE."""
    return 0 if m[of + DIRECTORY_LENGTH] > 0 else NONE


def last(m: Memory, of: int) -> int:
    """Return the position of the last entry, or NONE."""
    place = m[of + DIRECTORY_LENGTH] - 1
    return place * CHUNK + m[m[m[of + DIRECTORY] + place]] - 1 if place >= 0 else NONE


def after(m: Memory, of: int, position: int) -> int:
    """Return the position that follows, or NONE."""
    return _valid_position(m, of, position + 1)


def ahead(m: Memory, of: int, position: int) -> int:
    """Return the position that precedes, or NONE."""
    if position % CHUNK > 0:
        return position - 1
    place = position // CHUNK - 1
    return place * CHUNK + m[m[m[of + DIRECTORY] + place]] - 1 if place >= 0 else NONE


def at(m: Memory, of: int, position: int) -> int:
    """Return the block at ``position``."""
    return m[m[m[of + DIRECTORY] + position // CHUNK] + 1 + position % CHUNK] & BLOCK_MASK


def lower_bound(m: Memory, of: int, rank: int) -> int:
    """Return the position of the first entry of ``rank`` or more, or NONE."""
    return _valid_position(m, of, _seek(m, of, rank, NONE, NONE))


def find(m: Memory, of: int, rank: int, block: int) -> int:
    """Return the position of ``block``, which the set holds under ``rank``.

    Equal entries are told apart: a replay that leaves its recording may be given one address twice.
    """
    position = _valid_position(m, of, _seek(m, of, rank, m[block + TIE], m[block + ADDRESS]))
    while at(m, of, position) != block:
        position = after(m, of, position)
    return position


def insert(m: Memory, of: int, rank: int, block: int) -> None:
    """Put ``block`` into the set under ``rank``."""
    if m[of + DIRECTORY_LENGTH] == 0:
        _add_chunk(m, of, 0)
    position = _seek(m, of, rank, m[block + TIE], m[block + ADDRESS])
    place = position // CHUNK
    within = position % CHUNK
    chunk = m[m[of + DIRECTORY] + place]
    if m[chunk] == FULL:
        _split_chunk(m, of, place)
        if within > HALF:
            within -= HALF
            chunk = m[m[of + DIRECTORY] + place + 1]
    for i in range(chunk + m[chunk], chunk + within, -1):
        m[i + 1] = m[i]
    m[chunk + 1 + within] = rank << BLOCK_BITS | block
    m[chunk] += 1


def remove(m: Memory, of: int, rank: int, block: int) -> None:
    """Take ``block``, which the set holds under ``rank``, out of it."""
    remove_at(m, of, find(m, of, rank, block))


def remove_at(m: Memory, of: int, position: int) -> None:
    """Take the entry at ``position`` out of the set."""
    place = position // CHUNK
    chunk = m[m[of + DIRECTORY] + place]
    fill = m[chunk] - 1
    for i in range(chunk + 1 + position % CHUNK, chunk + 1 + fill):
        m[i] = m[i + 1]
    m[chunk] = fill
    if fill < QUARTER:
        _thin(m, of, place)


def _before(m: Memory, key: int, rank: int, tie: int, address: int) -> bool:
    """Return whether the entry ``key`` comes before ``(rank, tie, address)``."""
    key_rank = key >> BLOCK_BITS
    if key_rank != rank:
        return key_rank < rank
    block = key & BLOCK_MASK
    if m[block + TIE] != tie:
        return m[block + TIE] < tie
    return m[block + ADDRESS] < address


def _seek(m: Memory, of: int, rank: int, tie: int, address: int) -> int:
    """Return the place of the first entry not before the key; it may lie just after the last entry of a chunk."""
    directory = m[of + DIRECTORY]
    low = 1
    high = m[of + DIRECTORY_LENGTH]
    if high == 0:
        return 0
    while low < high:
        middle = (low + high) >> 1
        if _before(m, m[m[directory + middle] + 1], rank, tie, address):
            low = middle + 1
        else:
            high = middle
    place = low - 1
    chunk = m[directory + place]
    low = chunk + 1
    high = chunk + 1 + m[chunk]
    while low < high:
        middle = (low + high) >> 1
        if _before(m, m[middle], rank, tie, address):
            low = middle + 1
        else:
            high = middle
    return place * CHUNK + low - chunk - 1


def _valid_position(m: Memory, of: int, position: int) -> int:
    """Return ``position``, moved to the next chunk if it lies after the last entry of its own; NONE at the end."""
    place = position // CHUNK
    length = m[of + DIRECTORY_LENGTH]
    if place < length and position % CHUNK < m[m[m[of + DIRECTORY] + place]]:
        return position
    return (place + 1) * CHUNK if place + 1 < length else NONE


def _thin(m: Memory, of: int, place: int) -> None:
    """Join a nearly empty chunk with a neighbour where both fit into half a chunk; drop it when it is empty."""
    directory = m[of + DIRECTORY]
    fill = m[m[directory + place]]
    if fill == 0:
        _drop_chunk(m, of, place)
    elif place + 1 < m[of + DIRECTORY_LENGTH] and fill + m[m[directory + place + 1]] <= HALF:
        _join_chunks(m, of, place)
    elif place > 0 and fill + m[m[directory + place - 1]] <= HALF:
        _join_chunks(m, of, place - 1)


def _join_chunks(m: Memory, of: int, place: int) -> None:
    """Move the entries of the chunk after ``place`` to the end of the chunk at ``place``."""
    target = m[m[of + DIRECTORY] + place]
    source = m[m[of + DIRECTORY] + place + 1]
    for i in range(1, m[source] + 1):
        m[target + m[target] + i] = m[source + i]
    m[target] += m[source]
    _drop_chunk(m, of, place + 1)


def _split_chunk(m: Memory, of: int, place: int) -> None:
    """Move the upper part of a full chunk to a new one right after it."""
    chunk = m[m[of + DIRECTORY] + place]
    _add_chunk(m, of, place + 1)
    fresh = m[m[of + DIRECTORY] + place + 1]
    for i in range(1, FULL - HALF + 1):
        m[fresh + i] = m[chunk + HALF + i]
    m[fresh] = FULL - HALF
    m[chunk] = HALF


def _add_chunk(m: Memory, of: int, place: int) -> None:
    """Make room in the directory and put an empty chunk at ``place``; an outgrown directory is left behind."""
    length = m[of + DIRECTORY_LENGTH]
    if length == m[of + DIRECTORY_CAPACITY]:
        m[of + DIRECTORY_CAPACITY] = max(2 * length, FIRST_DIRECTORY)
        larger = take(m, m[of + DIRECTORY_CAPACITY])
        for i in range(length):
            m[larger + i] = m[m[of + DIRECTORY] + i]
        m[of + DIRECTORY] = larger
    directory = m[of + DIRECTORY]
    for i in range(directory + length, directory + place, -1):
        m[i] = m[i - 1]
    chunk = take_chunk(m)
    m[chunk] = 0
    m[directory + place] = chunk
    m[of + DIRECTORY_LENGTH] = length + 1


def _drop_chunk(m: Memory, of: int, place: int) -> None:
    drop_chunk(m, m[m[of + DIRECTORY] + place])
    length = m[of + DIRECTORY_LENGTH] - 1
    for i in range(m[of + DIRECTORY] + place, m[of + DIRECTORY] + length):
        m[i] = m[i + 1]
    m[of + DIRECTORY_LENGTH] = length
