"""Requested bytes by the size of the request, in the classes that the allocator itself distinguishes.

Up to 1 MiB comes from the small pool's 2 MiB segments, up to 10 MiB from 20 MiB ones, larger requests from segments of
their own (PyTorch, c10/cuda/CUDACachingAllocator.h: ``kSmallSize``, ``kMinLargeAlloc``, ``kLargeBuffer``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from oomscope.snapshot.lifetimes import Indices, bytes_by
from oomscope.snapshot.timeline import Timeline
from oomscope.units import GiB, MiB


@dataclass(frozen=True, kw_only=True)
class SizeClass:
    """Blocks of one class of sizes."""

    label: str
    bytes: int
    """Requested."""
    count: int


CLASSES: Final = (
    ("up to 1 MiB", MiB),
    ("of 1 to 10 MiB", 10 * MiB),
    ("of 10 to 100 MiB", 100 * MiB),
    ("of 100 MiB to 1 GiB", GiB),
    ("above 1 GiB", (1 << 63) - 1),
)
"""Labels and largest requests."""


def by_size(timeline: Timeline, rows: Indices) -> tuple[SizeClass, ...]:
    """Return the requested bytes of the blocks ``rows`` by size class, smallest sizes first, without empty classes."""
    size = timeline.lifetimes.size[rows]
    number = np.searchsorted([largest for _, largest in CLASSES], size)
    total = bytes_by(number, size, len(CLASSES))
    count = np.bincount(number, minlength=len(CLASSES))
    found = zip(CLASSES, total.tolist(), count.tolist(), strict=True)
    return tuple(SizeClass(label=label, bytes=size, count=blocks) for (label, _), size, blocks in found if blocks)
