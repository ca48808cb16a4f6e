"""Where the bytes sit that the allocator may use and no live request has: the reasons why a request was not served.

Every byte of the device that this process may use is either requested and live, or in exactly one gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from oomscope.allocator import AllocatorSettings, AllocatorState, Driver
from oomscope.allocator.engine.constants import SMALL_SIZE
from oomscope.snapshot.replay.pools import PoolId
from oomscope.snapshot.trace import DEFAULT_POOL, Block, Segment
from oomscope.snapshot.verdict_types import Gap
from oomscope.units import format_size

TEXTS: Final = {
    "split_remainder": "free pieces between live blocks of the same pool and stream, each too small",
    "cached_usable": "free blocks that could have served the request",
    "empty_segment": "segments without a live block, none of which fits (torch.cuda.empty_cache gives them back)",
    "cached_other_pool": "free pieces of the pool for other sizes (requests up to 1 MiB have a pool of their own)",
    "cached_other_stream": "free pieces of other streams; streams share no blocks",
    "private_pool": "free blocks of private pools (CUDA graphs, MemPool)",
    "outside_pool": "free blocks outside the private pool that the request was made in",
    "unknown_pool": "free blocks that could have served the request if it was made in their pool (not recorded)",
    "pending_free": "blocks that are freed, but that another stream may still use",
    "rounding": "rounding of sizes, and ends of blocks not worth splitting off",
    "granularity": "free on the device, but less than the piece that the allocator takes for this size",
    "free_device": "free on the device",
}
ORDER: Final = tuple(TEXTS)
WHOLE: Final = ("split_remainder", "cached_other_pool", "cached_other_stream")
"""Reasons for pieces of a segment, without meaning for one that is free as a whole."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """The request that failed, as the allocator sees it."""

    size: int
    """Rounded bytes."""
    stream: int
    taken_from_driver: int
    """Bytes that the allocator asks of the driver for the request."""
    pool_id: PoolId | None = DEFAULT_POOL
    """The pool that it was made in; None where that is unknown and there are several."""


def gaps_of(segments: Sequence[Segment], request: Request, available_bytes: int) -> tuple[Gap, ...]:
    """Return the gaps at a failure, largest first; they sum to ``available_bytes`` less requested bytes.

    Where more than D is reserved (the measurement of what others hold was off), nothing counts as free on the device.
    """
    total = dict.fromkeys(ORDER, 0)
    for segment in segments:
        is_empty = all(block.state == "inactive" for block in segment.blocks)
        for block in segment.blocks:
            for reason, size in _block_gaps(segment, block, request):
                total["empty_segment" if is_empty and reason in WHOLE else reason] += size
    reserved = sum(segment.total_size for segment in segments)
    free = max(0, available_bytes - reserved)
    total["granularity" if request.size <= free < request.taken_from_driver else "free_device"] += free
    rows = [Gap(reason=reason, bytes=size, text=_text(reason, request)) for reason, size in total.items() if size]
    return tuple(sorted(rows, key=lambda row: (-row.bytes, ORDER.index(row.reason))))


def _block_gaps(segment: Segment, block: Block, request: Request) -> list[tuple[str, int]]:
    if block.state == "active_allocated":
        return [("rounding", block.size - block.requested_size)]
    if block.state == "active_pending_free":
        return [("pending_free", block.size)]
    return [(_why_not(segment, block, request), block.size)]


def _why_not(segment: Segment, block: Block, request: Request) -> str:
    """Return why a free block did not serve the request: the first of the conditions that it does not meet.

    Pools share no segments (``MempoolIdHash`` and ``get_pool``, PyTorch c10/cuda/CUDACachingAllocator.cpp).
    """
    elsewhere = "outside_pool" if segment.pool_id == DEFAULT_POOL else "private_pool"
    if request.pool_id is not None and segment.pool_id != request.pool_id:
        return elsewhere
    if segment.stream != request.stream:
        reason = "cached_other_stream"
    elif (segment.segment_type == "small") != (request.size <= SMALL_SIZE):
        reason = "cached_other_pool"
    elif block.size < request.size:
        reason = "split_remainder"
    else:
        return "unknown_pool" if request.pool_id is None else "cached_usable"
    return elsewhere if request.pool_id is None and elsewhere == "private_pool" else reason


def _text(reason: str, request: Request) -> str:
    if reason != "granularity":
        return TEXTS[reason]
    return f"{TEXTS[reason]} ({format_size(request.taken_from_driver)} for {format_size(request.size)})"


def request_as_seen(settings: AllocatorSettings, nbytes: int, stream: int) -> Request:
    """Return what an allocator makes of a request of ``nbytes``: rounded, and as the piece asked of the driver."""
    allocator = AllocatorState(settings, Driver(total_bytes=1))
    size = allocator.round_size(nbytes)
    page = settings.large_segment_size if settings.expandable_segments and size > SMALL_SIZE else 1
    taken = max(allocator.segment_size(size), -(-size // page) * page)
    return Request(size=size, stream=stream, taken_from_driver=taken if size else 0)
