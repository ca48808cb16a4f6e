"""The emulator's memory: a few flat integer sequences that hold every block, free set, queue, counter and event.

Python lists serve the online allocator (indexing a numpy array from Python costs several times as much), numpy arrays
the compiled replay; the engine's functions do not know which. Sequences grow only between operations: before each one
``has_room`` says whether whatever it might do still fits.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from oomscope.allocator.constants import (
    BLOCK_ROW,
    CHUNKS_FREE,
    DIRECTORY_ROW,
    LOG_LENGTH,
    LOG_ROW,
    NEXT,
    NONE,
    NOTE_ROW,
    NOTES_FREE,
    NOTES_LIVE,
    NOTES_TOP,
    ROWS_FREE,
    ROWS_LIVE,
    ROWS_TOP,
    SCALARS,
    SETS_PER_STREAM,
    SIZE,
    STREAM_ROW,
    STREAMS,
)

Ints: TypeAlias = list[int]
"""A list of ints, or a numpy array of int64 where the engine runs compiled."""


class Heap(NamedTuple):
    """All of the emulator's state.

    ``n`` holds settings, counters and statistics; ``blocks`` the rows of blocks; ``chunks`` and ``directory`` the
    sorted sets; ``log`` the events since it was last drained; ``notes`` the uses on other streams and the CUDA events
    that came of them; ``streams`` handles, their order and the queues of events; ``ranges`` what the driver needs to
    know about addresses (first fit: live ranges; recorded: addresses to hand out).
    """

    n: Ints
    blocks: Ints
    chunks: Ints
    directory: Ints
    log: Ints
    notes: Ints
    streams: Ints
    ranges: Ints


def rows_needed(heap: Heap) -> int:
    """Return the rows of blocks that may be in use after one more operation.

    An operation adds at most a few blocks of its own, and unmapping leaves at most two more of each that it visits.
    """
    return 3 * heap.n[ROWS_LIVE] + 16


def has_room(heap: Heap) -> bool:
    """Say whether any single operation fits into the sequences as they are."""
    n = heap.n
    return (
        rows_needed(heap) * BLOCK_ROW <= len(heap.blocks)
        and (n[LOG_LENGTH] + 2 * n[ROWS_LIVE] + n[NOTES_LIVE] + 16) * LOG_ROW <= len(heap.log)
        and (n[NOTES_LIVE] + 1) * NOTE_ROW <= len(heap.notes)
    )


def chunks_needed(rows: int, sets: int) -> int:
    """Return the chunks that ``rows`` entries over ``sets`` sets can take up.

    Chunks are joined so that neighbours together hold a quarter of a chunk's 63 entries or more (see ``sortedset``).
    """
    return rows // 7 + sets + 2


def take_row(heap: Heap) -> int:
    """Return a row of ``blocks`` that is not in use."""
    n = heap.n
    n[ROWS_LIVE] += 1
    block = n[ROWS_FREE]
    if block != NONE:
        n[ROWS_FREE] = heap.blocks[block + NEXT]
        return block
    block = n[ROWS_TOP]
    n[ROWS_TOP] = block + BLOCK_ROW
    return block


def drop_row(heap: Heap, block: int) -> None:
    """Give a row back; a size of 0 marks it as not in use."""
    n = heap.n
    n[ROWS_LIVE] -= 1
    heap.blocks[block + SIZE] = 0
    heap.blocks[block + NEXT] = n[ROWS_FREE]
    n[ROWS_FREE] = block


def take_note(heap: Heap) -> int:
    """Return a row of ``notes`` that is not in use."""
    n = heap.n
    n[NOTES_LIVE] += 1
    note = n[NOTES_FREE]
    if note != NONE:
        n[NOTES_FREE] = heap.notes[note]
        return note
    note = n[NOTES_TOP]
    n[NOTES_TOP] = note + NOTE_ROW
    return note


def drop_note(heap: Heap, note: int) -> None:
    """Give a row back."""
    n = heap.n
    n[NOTES_LIVE] -= 1
    heap.notes[note] = n[NOTES_FREE]
    n[NOTES_FREE] = note


def empty_heap() -> Heap:
    """Return the state of an allocator that has not served anything, of lists and without streams."""
    n = [0] * SCALARS
    for index in (ROWS_FREE, CHUNKS_FREE, NOTES_FREE):
        n[index] = NONE
    heap = Heap(n, [], [], [], [], [], [], [])
    return grown(heap)


def grown(heap: Heap, *, streams: int = 1, recorded: int = 0) -> Heap:
    """Return the heap with room for six times what it holds, for ``streams`` streams and ``recorded`` addresses.

    Lists are extended in place. The directory of the sorted sets is laid out anew, since its rows get longer.
    """
    n = heap.n
    streams = max(streams, n[STREAMS])
    rows = max(2 * rows_needed(heap), 512)
    sets = streams * SETS_PER_STREAM
    chunks = chunks_needed(rows, sets)
    _extend(heap.blocks, rows * BLOCK_ROW)
    _extend(heap.chunks, chunks * 64)
    _extend(heap.log, (n[LOG_LENGTH] + 4 * rows) * LOG_ROW)
    _extend(heap.notes, 2 * (n[NOTES_LIVE] + 32) * NOTE_ROW)
    _extend(heap.streams, streams * STREAM_ROW)
    _extend(heap.ranges, 2 * max(rows, recorded + 1))
    directory = _relaid(heap.directory, n[DIRECTORY_ROW], chunks + 1, sets)
    n[DIRECTORY_ROW] = chunks + 1
    return heap._replace(directory=directory)


def _extend(sequence: Ints, length: int) -> None:
    sequence.extend([0] * (length - len(sequence)))


def _relaid(directory: Ints, old_row: int, row: int, sets: int) -> Ints:
    fresh = [0] * (row * sets)
    for which in range(len(directory) // old_row if old_row else 0):
        used = directory[which * old_row] + 1
        fresh[which * row : which * row + used] = directory[which * old_row : which * old_row + used]
    return fresh
