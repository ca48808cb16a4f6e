"""What the allocator holds and did, as plain values: events, blocks, and segments as PyTorch's snapshot shows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from oomscope.allocator.engine.constants import *
from oomscope.allocator.engine.memory import BLOCK_MASK, Memory


@dataclass(frozen=True, slots=True)
class AllocatorEvent:
    """Something the allocator did besides serving a request.

    ``action`` is ``segment_alloc``, ``segment_free``, ``segment_map``, ``segment_unmap``, ``free_completed`` or
    ``oom``. ``size`` is bytes: of the segment or the mapped pages; the requested bytes of a completed free; the rounded
    request of an OOM, whose ``address`` is the free bytes of the device, as in PyTorch's traces. ``op`` counts the
    calls of the allocator. ``range`` numbers segments and reservations in order of creation and ``offset`` is the
    place in it; both are -1 for an OOM, which alone has an ``alloc_size``: what was asked of the driver. ``pool`` is
    the number of a private pool, 0 for the default one.
    """

    action: str
    address: int
    size: int
    stream: int
    op: int
    range: int
    offset: int
    alloc_size: int = 0
    pool: int = 0


@dataclass(frozen=True, slots=True)
class AllocatorBlock:
    """A block: its ``state`` is ``active_allocated``, ``active_pending_free`` or ``inactive``; sizes are bytes.

    ``requested_size`` is 0 for an inactive block, where PyTorch shows a stale number.
    """

    address: int
    size: int
    requested_size: int
    state: str


@dataclass(frozen=True, slots=True)
class AllocatorSegment:
    """A segment of cudaMalloc, or a run of mapped pages of an expandable one, with all of its blocks.

    ``pool`` is the number of the private pool that it belongs to, 0 for the default one.
    """

    address: int
    total_size: int
    stream: int
    segment_type: str
    is_expandable: bool
    range: int
    offset: int
    blocks: tuple[AllocatorBlock, ...]
    pool: int = 0


def drain_log(m: Memory) -> list[AllocatorEvent]:
    """Return the events of the log, in order, and empty it."""
    events = [_event(m, m[LOG] + index * LOG_ROW) for index in range(m[LOG_LENGTH])]
    m[LOG_LENGTH] = 0
    return events


def describe_block(m: Memory, block: int) -> AllocatorBlock:
    """Return a mapped block."""
    state = "active_allocated" if m[block + ALLOCATED] else "active_pending_free" if m[block + PENDING] else "inactive"
    requested = 0 if state == "inactive" else int(m[block + REQUESTED])
    return AllocatorBlock(int(m[block + ADDRESS]), int(m[block + SIZE]), requested, state)


def segments_of(m: Memory, allocated: Iterable[int]) -> list[AllocatorSegment]:
    """Return everything held from the driver, by address; ``allocated`` are the blocks that are allocated.

    Of a reservation each contiguous run of mapped blocks counts as a segment, as in PyTorch's snapshot.
    """
    seen: set[int] = set()
    segments: list[AllocatorSegment] = []
    for some in (*allocated, *_unallocated(m)):
        if some in seen:
            continue
        run: list[int] = []
        for block in _neighbourhood(m, some):
            seen.add(block)
            if m[block + MAPPED]:
                run.append(block)
            elif run:
                segments.append(_segment(m, run))
                run = []
        if run:
            segments.append(_segment(m, run))
    return sorted(segments, key=lambda segment: segment.address)


def _event(m: Memory, row: int) -> AllocatorEvent:
    is_oom = m[row + LOG_ACTION] == OOM
    return AllocatorEvent(
        action=ACTION_NAMES[m[row + LOG_ACTION]],
        address=int(m[row + LOG_ADDRESS]),
        size=int(m[row + LOG_SIZE]),
        stream=int(m[m[row + LOG_STREAM] + HANDLE]),
        op=int(m[row + LOG_OP]),
        range=int(m[row + LOG_RANGE]),
        offset=NONE if is_oom else int(m[row + LOG_ADDRESS] - m[row + LOG_BASE]),
        alloc_size=int(m[row + LOG_ALLOC_SIZE]) if is_oom else 0,
        pool=_pool_number(m, m[row + LOG_STREAM]),
    )


def _unallocated(m: Memory) -> Iterator[int]:
    for stream in _stream_rows(m):
        for pool in (SMALL, LARGE):
            of = stream + FREE_SETS + pool * SET_ROW
            for place in range(m[of + DIRECTORY_LENGTH]):
                chunk = m[m[of + DIRECTORY] + place]
                for i in range(chunk + 1, chunk + 1 + m[chunk]):
                    yield m[i] & BLOCK_MASK
        note = m[stream + QUEUE_HEAD]
        while note != NONE:
            yield m[note + NOTE_BLOCK]
            note = m[note + NOTE_NEXT]


def _stream_rows(m: Memory) -> Iterator[int]:
    """Yield the rows of all streams: those of the default pool, then those of each private pool."""
    first, private = m[LOWEST_STREAM], m[FIRST_POOL]
    while True:
        stream = first
        while stream != NONE:
            yield stream
            stream = m[stream + ABOVE]
        if private == NONE:
            return
        first, private = m[private + LOWEST_OF_POOL], m[private + NEXT_POOL]


def _pool_number(m: Memory, stream: int) -> int:
    owner = m[stream + OWNER]
    return 0 if owner == NONE else int(m[owner + POOL_NUMBER])


def _neighbourhood(m: Memory, block: int) -> Iterator[int]:
    """Yield all blocks of the segment or reservation of ``block``, by address."""
    while m[block + PREV] != NONE:
        block = m[block + PREV]
    while block != NONE:
        yield block
        block = m[block + NEXT]


def _segment(m: Memory, run: list[int]) -> AllocatorSegment:
    head = run[0]
    return AllocatorSegment(
        address=int(m[head + ADDRESS]),
        total_size=sum(int(m[block + SIZE]) for block in run),
        stream=int(m[m[head + STREAM] + HANDLE]),
        segment_type="small" if m[head + POOL] == SMALL else "large",
        is_expandable=bool(m[head + PAGE] > 0),
        range=int(m[head + RANGE]),
        offset=int(m[head + ADDRESS] - m[head + BASE]),
        blocks=tuple(describe_block(m, block) for block in run),
        pool=_pool_number(m, m[head + STREAM]),
    )
