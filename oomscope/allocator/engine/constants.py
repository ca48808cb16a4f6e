"""Where everything lies in the emulator's memory, and the sizes that PyTorch fixes at compile time.

The engine's state is one flat sequence of integers ``m`` (see ``memory.py``), so that the same functions run over a
Python list and, compiled, over a numpy array. A scalar is ``m[NAME]``; a block, stream, set or note is the offset of
its record, and field ``F`` of block ``b`` is ``m[b + F]``.
"""

from __future__ import annotations

from oomscope.units import MiB

# Sizes of c10/cuda/CUDACachingAllocator.cpp and c10/core/AllocatorConfig.h (kMinBlockSize, kSmallSize, ...).
MIN_BLOCK = 512
SMALL_SIZE = MiB
SMALL_SEGMENT = 2 * MiB
LARGE_SEGMENT_DEFAULT = 20 * MiB
MIN_LARGE_ALLOC = 10 * MiB
ROUND_LARGE = 2 * MiB
DEVICE_PAGE = 2 * MiB
"""Granularity of physical memory on NVIDIA devices: cudaMalloc and cuMemCreate take whole pages of 2 MiB."""
DIVISION_INTERVALS = 16
DIVISION_FIRST_LOG2 = 20
UNLIMITED = 1 << 62
"""Stands for ``std::numeric_limits<size_t>::max()``, the default of ``max_split_size``."""
MAX_REQUEST = 1 << 60
"""Requests are smaller: ``NativeCachingAllocator::allocate`` refuses 1 EiB and more before it looks for a block."""
MAX_DEVICE_BYTES = 4096 * 1024 * MiB - DEVICE_PAGE
"""The largest device: the packed keys of the free sets order no larger blocks (see ``memory.py``)."""

NONE = -1
NULL_REQUEST = -2
OUT_OF_MEMORY = -3
REJECTED = -4
SEVERAL = -5

SMALL = 0
LARGE = 1

# Kinds of operations of a replay.
MALLOC, FREE, RECORD_STREAM, SYNCHRONIZE, EMPTY_CACHE, RELEASE_POOL, EMPTY_POOL = range(7)

# ---- a block ---------------------------------------------------------------------------------------------------
BLOCK_ROW = 16
(
    ADDRESS,
    SIZE,
    PREV,
    NEXT,  # neighbours by address within the segment or reservation; NEXT also chains the rows not in use
    ALLOCATED,
    PENDING,  # CUDA events that must complete before the block is free
    MAPPED,
    TIE,  # what orders equally large free blocks before the address does
    STREAM,  # offset of the stream, not its handle
    POOL,  # SMALL or LARGE; a private pool has both, in sets of its own
    PAGE,  # page size of the expandable reservation, 0 for a block of cudaMalloc
    REQUESTED,
    AGE,  # calls of the pool when the block became free
    USES,  # first of the chained notes of record_stream, or NONE; only while allocated
    BASE,  # address of the segment or reservation
    RANGE,  # number in order of creation
) = range(BLOCK_ROW)

# ---- an event of the log ---------------------------------------------------------------------------------------
LOG_ROW = 8
LOG_OP, LOG_ACTION, LOG_ADDRESS, LOG_SIZE, LOG_STREAM, LOG_RANGE, LOG_BASE, LOG_ALLOC_SIZE = range(LOG_ROW)

SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP, FREE_COMPLETED, OOM = range(6)
ACTION_NAMES = ("segment_alloc", "segment_free", "segment_map", "segment_unmap", "free_completed", "oom")

# ---- a note: one use of a block on another stream, later one CUDA event ----------------------------------------
NOTE_ROW = 4
NOTE_NEXT, NOTE_BLOCK, NOTE_STREAM, NOTE_READY_AT = range(NOTE_ROW)
NEVER = 1 << 62
"""``NOTE_READY_AT`` of an event that only a synchronisation completes."""

# ---- a sorted set of blocks ------------------------------------------------------------------------------------
SET_ROW = 3
DIRECTORY, DIRECTORY_LENGTH, DIRECTORY_CAPACITY = range(SET_ROW)
CHUNK = 64
"""Integers in a chunk of a set: how many entries it holds, then the entries."""

# ---- a stream, and again for each private pool that is asked for blocks on it ----------------------------------
(
    HANDLE,
    ABOVE,
    BELOW,  # ABOVE and BELOW chain the streams of the default pool, or of one private pool, by handle
    QUEUE_HEAD,
    QUEUE_TAIL,  # a stream has one queue, whatever the pools of its blocks: that of its row in the default pool
    DEFAULT_ROW,  # row of the stream in the default pool
    OWNER,  # the private pool, or NONE
) = range(7)
FREE_SETS = 7  # one set for each pool: free blocks by (size, tie, address)
UNMAPPED_SETS = FREE_SETS + 2 * SET_ROW  # one set for each pool: unmapped parts of reservations by address
STREAM_ROW = UNMAPPED_SETS + 2 * SET_ROW
DEFAULT_STREAM = 0
"""The handle of CUDA's default stream, which is always there."""

# ---- a private pool --------------------------------------------------------------------------------------------
POOL_ROW = 4
(
    POOL_NUMBER,
    NEXT_POOL,  # chains all private pools, in order of creation
    POOL_IN_USE,  # users: graphs, MemPools and threads that allocate in it; its cached blocks stay while it has any
    LOWEST_OF_POOL,  # the first of its streams by handle
) = range(POOL_ROW)

# ---- the scalars: settings, the device, counters, statistics ---------------------------------------------------
(
    EXPANDABLE,
    MAX_SPLIT,
    NON_SPLIT_ROUNDING,
    LARGE_SEGMENT,
    THROW_ON_OOM,
    TIE_RULE,
    LIMIT,  # bytes this process may reserve, or NONE
    GC_BYTES,  # garbage is collected above this many reserved bytes, or NONE
    DIVIDED,  # whether any interval is rounded to a division of a power of two
    EVENT_LAG,
    EVENTS_HELD,
    TOTAL,
    OTHER,
    CHARGED,
    CHARGED_PEAK,
    POLICY,
    NEXT_ADDRESS,
    RANGES,  # offset of pairs (address, size): live ranges for first fit, or addresses left to hand out
    RANGES_LIVE,
    RANGES_CAPACITY,
    RANGES_MADE,
    RESERVED,
    MALLOCS,
    SMALL_CALLS,
    LARGE_CALLS,
    BLOCKS_MADE,
    SEGMENTS_MADE,
    OP,
    LOG,  # offset of the log
    LOG_LENGTH,
    LOG_CAPACITY,
    TOP,  # offset of the first integer not in use
    FREE_BLOCK_ROWS,
    FREE_CHUNKS,
    FREE_NOTES,
    BLOCKS_LIVE,
    NOTES_LIVE,
    STREAMS_LIVE,
    LOWEST_STREAM,
    HIGHEST_STREAM,
    DEFAULT_STREAM_ROW,
    QUEUED,
    RETRIES,
    OOMS,
    SYNCS,
    DEVICE_ALLOCS,
    DEVICE_FREES,
    READY_STREAM,  # the one stream whose events were made ready since the last look, NONE, or SEVERAL
    LONGEST_RANGE,  # bytes of the longest segment or reservation ever made: no request for more finds room in one
    FIRST_POOL,  # the private pool of the lowest number, or NONE
    POOLS_RETRY,  # whether a request in a MemPool may give back cached blocks, as one of the default pool
    FREES_SHORT,  # whether a reservation shorter than the request is given back unmapped
) = range(52)
DIVISIONS = 52

TIE_ADDRESS, TIE_BLOCK, TIE_SEGMENT = range(3)
POLICY_BUMP, POLICY_DOWN, POLICY_FIRST_FIT, POLICY_RECORDED = range(4)
BUMP_BASE = 0x10_0000_0000
DOWN_BASE = 0x7000_0000_0000

# Statistics: every kind holds (all, small, large) x (current, peak, allocated, freed).
STAT_FIELDS = 4
CURRENT, PEAK, ROSE, FELL = range(STAT_FIELDS)
STAT_ROW = 3 * STAT_FIELDS
STATS = DIVISIONS + DIVISION_INTERVALS
STAT_KINDS = 11
(
    ALLOCATION,
    SEGMENT,
    ACTIVE,
    INACTIVE_SPLIT,
    ALLOCATED_BYTES,
    RESERVED_BYTES,
    ACTIVE_BYTES,
    INACTIVE_SPLIT_BYTES,
    REQUESTED_BYTES,
    OVERSIZE_ALLOCATIONS,
    OVERSIZE_SEGMENTS,
) = range(STATS, STATS + STAT_KINDS * STAT_ROW, STAT_ROW)
SCALARS = STATS + STAT_KINDS * STAT_ROW
