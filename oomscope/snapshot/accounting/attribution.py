"""Attributes requested bytes to category, code line, module, stack. Every table sums exactly to what it explains.

What cannot be attributed (no stack, alive before the recording began) is a row of its own, never spread over others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from oomscope.snapshot.accounting.lifetimes import BEFORE, Indices, active_blocks, bytes_by
from oomscope.snapshot.accounting.stack_tree import LiveStacks, StackBytes, place
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.sites import (
    Frame,
    Site,
    SiteBytes,
    Stack,
    is_measuring,
    is_python,
    is_user_code,
    over_layers,
    site_of,
    user_frame,
)
from oomscope.snapshot.trace import Category
from oomscope.units import GiB, MiB

SiteOf = Callable[[Stack, str], Site | None]
"""Chooses the line that stands for a stack, given the stack and the module; None where the stack is empty."""

NO_STACK: Final = Site(file="", line=0, function="(no stack recorded)")
OLDER: Final = Site(file="", line=0, function="(alive before the recording began)")


def site_without_stack(timeline: Timeline, born: int) -> Site:
    """Return the row of a block that has no stack; what a file without events holds may be of any time."""
    return OLDER if born == BEFORE and len(timeline.trace) else NO_STACK


def by_category(timeline: Timeline, event: int, rows: Indices | None = None) -> dict[str, int]:
    """Return requested bytes by category right after ``event``, largest first; ``unknown`` is a row too.

    ``event`` -1 is what was there before the first; ``rows`` of the lifetimes None are :meth:`Timeline.requested_at`.
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
    before the recording for the stack that the final segments keep. Without ``categories``, one for each of the
    lifetimes, those of the recording count.
    """
    table, trace = timeline.lifetimes, timeline.trace
    rows = timeline.requested_at(event) if rows is None else rows
    stacks = stacks_of(timeline, rows)
    modules = column_of(timeline, rows, trace.module_id)
    kinds = column_of(timeline, rows, trace.category) if categories is None else categories[rows]
    chosen: dict[tuple[Stack, int], Site | None] = {}
    totals: dict[tuple[Site, int], list[int]] = {}
    for row, stack, module, category in zip(rows.tolist(), stacks, modules.tolist(), kinds.tolist(), strict=True):
        key = (stack, module)
        if key not in chosen:
            chosen[key] = choose(stack, trace.modules[module])
        site = chosen[key] or site_without_stack(timeline, int(table.born[row]))
        total = totals.setdefault((site, category), [0, 0])
        total[0] += int(table.size[row])
        total[1] += 1
    found = [
        SiteBytes(site=site, bytes=size, count=count, category=Category(category).label)
        for (site, category), (size, count) in totals.items()
    ]
    return tuple(sorted(found, key=lambda row: (-row.bytes, str(row.site), row.site.module, row.category)))


def by_stack(
    timeline: Timeline,
    moments: Mapping[str, Indices],
    categories: NDArray[np.int8] | None = None,
    *,
    choose: Callable[[Stack], Frame | None] = user_frame,
    name: Callable[[str], str] = str,
) -> LiveStacks:
    """Return the requested bytes at some moments (rows of the lifetimes each) by stack, module and category.

    What backward allocated has the stack of the forward operation that caused it, where that is known. ``choose`` tells
    which frame stands for a stack in a table, ``name`` what a file is called. The equal modules of a list
    have one name.
    """
    table, trace, frames = timeline.lifetimes, timeline.trace, _Frames(choose, name)
    modules = list(map(over_layers, trace.modules))
    totals: dict[tuple[tuple[int, ...], int, str, int], list[list[int]]] = {}
    for moment, rows in enumerate(moments.values()):
        kinds = column_of(timeline, rows, trace.category) if categories is None else categories[rows]
        columns = (table.size[rows], table.born[rows], column_of(timeline, rows, trace.module_id), kinds)
        blocks = zip(stacks_of(timeline, rows), *(column.tolist() for column in columns), strict=True)
        for stack, size, born, module, kind in blocks:
            numbers, line = frames.numbers(stack, site_without_stack(timeline, born))
            key = numbers, line, modules[module], kind
            total = totals.setdefault(key, [[0, 0] for _ in moments])[moment]
            total[0] += size
            total[1] += 1
    found = [
        StackBytes(*key[:3], Category(key[3]).label, *(tuple(column) for column in zip(*total, strict=True)))
        for key, total in totals.items()
    ]
    return LiveStacks(
        moments=tuple(moments),
        frames=tuple(frames.known),
        own=tuple(sorted(frames.own)),
        rows=tuple(sorted(found, key=lambda row: (-max(row.bytes), row))),
    )


AT_FAILURE: Final = "at the failed allocation"
AT_PEAK: Final = "at the peak"
AT_END: Final = "at the end"


def moments_shown(timeline: Timeline, *, failed_event: int | None = None) -> dict[str, Indices]:
    """Return the blocks that are live at a failed allocation, at the peak and at the end, where these differ."""
    last = len(timeline.trace) - 1
    peak = timeline.peak_event()
    moments = {}
    if failed_event is not None:
        moments[AT_FAILURE] = timeline.lifetimes.held_at(failed_event - 1)
    if last >= 0:
        moments[AT_PEAK] = timeline.requested_at(peak)
    if peak != last or last < 0:
        moments[AT_END] = timeline.requested_at(last)
    return moments


@dataclass(frozen=True)
class _Frames:
    """The distinct frames, numbered as they are found."""

    choose: Callable[[Stack], Frame | None]
    name: Callable[[str], str]
    known: dict[Frame, int] = field(default_factory=dict)
    own: set[int] = field(default_factory=set)
    _seen: dict[tuple[Stack, Site], tuple[tuple[int, ...], int]] = field(default_factory=dict)

    def numbers(self, stack: Stack, unknown: Site) -> tuple[tuple[int, ...], int]:
        """Return the frames of ``stack``, outermost first, and the position of the one that stands for it."""
        if (stack, unknown) not in self._seen:
            shown = [frame for frame in stack if is_python(frame) and not is_measuring(frame)]
            chosen = self.choose(stack)
            if not shown:
                shown = [place((site_of(stack) or unknown).function)]
            position = shown.index(chosen) if chosen in shown else 0
            numbers = tuple(self._number(frame) for frame in reversed(shown))
            self._seen[stack, unknown] = numbers, len(shown) - 1 - position
        return self._seen[stack, unknown]

    def _number(self, frame: Frame) -> int:
        number = self.known.setdefault(frame._replace(filename=self.name(frame.filename)), len(self.known))
        if is_user_code(frame):
            self.own.add(number)
        return number


def column_of(timeline: Timeline, rows: Indices, column: NDArray[np.integer]) -> Indices:
    """Return a column of the alloc events of ``rows``; 0, the unknown, for what was alive before."""
    born = timeline.lifetimes.born[rows]
    values = np.zeros(len(rows), dtype=np.int64)
    values[born != BEFORE] = column[born[born != BEFORE]]
    return values


def _totals(timeline: Timeline, event: int, rows: Indices | None, column: NDArray[np.integer]) -> list[tuple[int, int]]:
    """Return the distinct values of a column among the blocks that count, each with its bytes, largest first."""
    rows = timeline.requested_at(event) if rows is None else rows
    values, place = np.unique(column_of(timeline, rows, column), return_inverse=True)
    totals = bytes_by(place, timeline.lifetimes.size[rows], len(values))
    return sorted(zip(values.tolist(), totals.tolist(), strict=True), key=lambda item: (-item[1], item[0]))


def stacks_of(timeline: Timeline, rows: Indices) -> Iterator[Stack]:
    """Yield the stack that stands for each block: the forward's behind it, its own, or the one the segments keep."""
    table, trace, segments = timeline.lifetimes, timeline.trace, timeline.segments or ()
    older = bool((table.born[rows] == BEFORE).any())
    kept = [block.stack for _, block in active_blocks(segments)] if older else []
    for born, block in zip(table.born[rows].tolist(), table.segment_block[rows].tolist(), strict=True):
        if born != BEFORE:
            yield trace.attributed_stack(born)
        else:
            yield kept[block] if block >= 0 else ()


@dataclass(frozen=True, kw_only=True)
class SizeClass:
    """Blocks of one class of sizes."""

    label: str
    bytes: int
    """Requested bytes."""
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
