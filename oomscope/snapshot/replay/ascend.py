"""Recordings of Ascend NPUs: torch_npu keeps a copy of the caching allocator that makes blocks a little larger.

It adds 32 bytes to every request before it rounds, and under expandable segments hands out blocks of 2 MiB and more on
multiples of 16 KiB (``round_size`` and ``alloc_block`` of torch_npu/csrc/core/npu/NPUCachingAllocator.cpp). A replay
asks for the larger sizes. The alignment is followed in size only: what it leaves in front of a block lies behind it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from oomscope.allocator.engine.constants import MIN_BLOCK, ROUND_LARGE, SMALL_SIZE
from oomscope.snapshot.accounting.lifetimes import Indices
from oomscope.snapshot.accounting.timeline import Timeline, once
from oomscope.units import KiB

PADDING: Final = 32
ALIGNMENT: Final = 16 * KiB


def sizes_asked(timeline: Timeline) -> Indices:
    """Return for each of the lifetimes what an allocator of CUDA is to be asked for, to give a block of its size."""
    sizes = timeline.lifetimes.size
    if not is_ascend(timeline):
        return sizes
    larger = sizes + PADDING
    if not any(segment.is_expandable for segment in timeline.segments or ()):
        return larger
    return np.where(larger >= ROUND_LARGE, (larger + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT, larger)


def most_in_small_pool(timeline: Timeline) -> int:
    """Return the largest request that the small pool serves."""
    return SMALL_SIZE - PADDING if is_ascend(timeline) else SMALL_SIZE


@once
def is_ascend(timeline: Timeline) -> bool:
    """Return whether a recording is of an Ascend NPU.

    CUDA's allocator puts a neighbour right behind a block whose size is a multiple of 512 bytes, torch_npu's 512 bytes
    further; at least eight neighbours must agree.
    """
    table = timeline.lifetimes
    whole = (table.size > 0) & (table.size % MIN_BLOCK == 0)
    ends = np.unique(table.address[whole] + table.size[whole].astype(np.uint64))
    tight = int(np.isin(ends, table.address).sum())
    padded = int(np.isin(ends + np.uint64(MIN_BLOCK), table.address).sum())
    return padded >= max(8, 2 * tight)
