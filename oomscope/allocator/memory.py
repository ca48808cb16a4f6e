"""The emulator's memory: one flat sequence of integers that holds every block, free set, queue, counter and event.

It starts with the scalars of ``constants.py``; everything else is a record taken from what lies beyond ``m[TOP]`` or
from a chain of records given back, and is named by its offset. A Python list serves the online allocator (indexing a
numpy array from Python costs several times as much), a numpy array the compiled replay; the engine does not know which.
The sequence grows at its end, and only between operations: before each one ``has_room`` says whether whatever it might
do still fits.
"""

from __future__ import annotations

from typing import TypeAlias

from oomscope.allocator.constants import (
    BLOCK_ROW,
    BLOCKS_LIVE,
    CHUNK,
    FIRST_POOL,
    FREE_BLOCK_ROWS,
    FREE_CHUNKS,
    FREE_NOTES,
    LOG,
    LOG_CAPACITY,
    LOG_LENGTH,
    LOG_ROW,
    NEXT,
    NONE,
    NOTE_ROW,
    NOTES_LIVE,
    RANGES,
    RANGES_CAPACITY,
    RANGES_LIVE,
    SCALARS,
    STREAMS_LIVE,
    TOP,
)

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
    in a set takes up at most a seventh of a chunk (see ``sortedset``) and a little of a directory.
    """
    blocks = 2 * m[BLOCKS_LIVE] + 16
    in_sets = (3 * m[BLOCKS_LIVE] + 16) // 7 + 4 * m[STREAMS_LIVE]
    return blocks * BLOCK_ROW + in_sets * (CHUNK + 4) + NOTE_ROW + 256


def events_needed(m: Memory) -> int:
    """Return the rows of the log that one more operation may take."""
    return 2 * m[BLOCKS_LIVE] + m[NOTES_LIVE] + 16


def has_room(m: Memory) -> bool:
    """Say whether any single operation fits into the sequence as it is."""
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
