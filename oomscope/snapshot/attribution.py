"""Say what requested bytes belong to: category, code line, module. Every table sums exactly to what it explains.

What cannot be attributed (no stack, alive before the recording began) is a row of its own, never spread over others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from oomscope.snapshot.lifetimes import BEFORE, Indices, active_blocks, bytes_by
from oomscope.snapshot.sites import Site, SiteBytes, site_of
from oomscope.snapshot.timeline import Timeline
from oomscope.snapshot.trace import Category, Stack
from oomscope.units import GiB, MiB

SiteOf = Callable[[Stack, str], Site | None]
"""Chooses the line that stands for a stack, given the stack and the module; None where the stack is empty."""

NO_STACK: Final = Site(file="", line=0, function="(no stack recorded)")
OLDER: Final = Site(file="", line=0, function="(alive before the recording began)")


def by_category(timeline: Timeline, event: int, rows: Indices | None = None) -> dict[str, int]:
    """Return requested bytes by category right after ``event``, largest first; ``unknown`` is a row too.

    Args:
        timeline: the trace.
        event: the event; -1 for what was there before the first.
        rows: the blocks that count, as rows of the lifetimes; None for :meth:`Timeline.requested_at`.
    """
    totals = _totals(timeline, event, rows, timeline.trace.category)
    return {Category(category).label: size for category, size in totals}


def by_module(timeline: Timeline, event: int, rows: Indices | None = None) -> dict[str, int]:
    """Return requested bytes by dotted module path, largest first; ``""`` holds what no module is known of."""
    totals = _totals(timeline, event, rows, timeline.trace.module_id)
    return {timeline.trace.modules[index]: size for index, size in totals}


def by_site(
    timeline: Timeline,
    event: int,
    choose: SiteOf = site_of,
    categories: NDArray[np.int8] | None = None,
    rows: Indices | None = None,
) -> tuple[SiteBytes, ...]:
    """Return requested bytes by line, module and category right after ``event``, largest first.

    What was allocated in backward counts for the forward line that caused it, where that is known; what was alive
    before the recording for the stack that the final segments keep.

    Args:
        timeline: the trace.
        event: the event; -1 for what was there before the first.
        choose: which line stands for a stack.
        categories: what each row of the lifetimes is for
            (:attr:`~oomscope.snapshot.infer.categorise.Evidence.category`); None for what the recording itself says.
        rows: as in :func:`by_category`.
    """
    table, trace = timeline.lifetimes, timeline.trace
    rows = timeline.requested_at(event) if rows is None else rows
    stacks = stacks_of(timeline, rows)
    modules = _column(timeline, rows, trace.module_id)
    kinds = _column(timeline, rows, trace.category) if categories is None else categories[rows]
    chosen: dict[tuple[Stack, int], Site | None] = {}
    totals: dict[tuple[Site, int], list[int]] = {}
    for row, stack, module, category in zip(rows.tolist(), stacks, modules.tolist(), kinds.tolist(), strict=True):
        key = (stack, module)
        if key not in chosen:
            chosen[key] = choose(stack, trace.modules[module])
        site = chosen[key] or (OLDER if table.born[row] == BEFORE else NO_STACK)
        total = totals.setdefault((site, category), [0, 0])
        total[0] += int(table.size[row])
        total[1] += 1
    found = [
        SiteBytes(site=site, bytes=size, count=count, category=Category(category).label)
        for (site, category), (size, count) in totals.items()
    ]
    return tuple(sorted(found, key=lambda row: (-row.bytes, str(row.site), row.site.module, row.category)))


def _column(timeline: Timeline, rows: Indices, column: NDArray[np.integer]) -> Indices:
    """Return a column of the alloc events of ``rows``; 0, the unknown, for what was alive before."""
    born = timeline.lifetimes.born[rows]
    values = np.zeros(len(rows), dtype=np.int64)
    values[born != BEFORE] = column[born[born != BEFORE]]
    return values


def _totals(timeline: Timeline, event: int, rows: Indices | None, column: NDArray[np.integer]) -> list[tuple[int, int]]:
    """Return the distinct values of a column among the blocks that count, each with its bytes, largest first."""
    rows = timeline.requested_at(event) if rows is None else rows
    values, place = np.unique(_column(timeline, rows, column), return_inverse=True)
    totals = bytes_by(place, timeline.lifetimes.size[rows], len(values))
    return sorted(zip(values.tolist(), totals.tolist(), strict=True), key=lambda item: (-item[1], item[0]))


def stacks_of(timeline: Timeline, rows: Indices) -> Iterator[Stack]:
    """Yield the stack that stands for each block: the forward's behind it, its own, or the one the segments keep."""
    table, trace, segments = timeline.lifetimes, timeline.trace, timeline.segments or ()
    older = bool((table.born[rows] == BEFORE).any())
    kept = [segments[place.segment].blocks[place.block].stack for place in active_blocks(segments)] if older else []
    for born, block in zip(table.born[rows].tolist(), table.segment_block[rows].tolist(), strict=True):
        if born != BEFORE:
            yield trace.stacks[trace.forward_stack_id[born] or trace.stack_id[born]]
        else:
            yield kept[block] if block >= 0 else ()


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
"""Labels and largest requests. Up to 1 MiB comes from the small pool's 2 MiB segments, up to 10 MiB from 20 MiB ones,
larger requests from segments of their own (PyTorch, c10/cuda/CUDACachingAllocator.h: ``kSmallSize``,
``kMinLargeAlloc``, ``kLargeBuffer``)."""


def by_size(timeline: Timeline, rows: Indices) -> tuple[SizeClass, ...]:
    """Return the requested bytes of the blocks ``rows`` by size class, smallest sizes first, without empty classes."""
    size = timeline.lifetimes.size[rows]
    number = np.searchsorted([largest for _, largest in CLASSES], size)
    total = bytes_by(number, size, len(CLASSES))
    count = np.bincount(number, minlength=len(CLASSES))
    found = zip(CLASSES, total.tolist(), count.tolist(), strict=True)
    return tuple(SizeClass(label=label, bytes=size, count=blocks) for (label, _), size, blocks in found if blocks)
