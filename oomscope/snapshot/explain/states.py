"""The allocator's segments and blocks at many moments of a recording, so that a page can show any of them.

No moment is stored by itself: a segment or block is one row, with the first moment that shows it and the first that no
longer does. The moments are those of the timeline's bins, thinned out until the rows are few enough; near the moment of
interest all are kept. Blocks too small to be seen are sums by category, so that every moment adds up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from oomscope.allocator import AllocatorSettings, AllocatorState, Driver
from oomscope.snapshot.accounting.lifetimes import Indices, active_blocks, summed_over_time
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.explain.areas import Area, areas_at, held_over_time, shown_at
from oomscope.snapshot.explain.composition import Describe
from oomscope.snapshot.explain.curves import ORDER, Bins
from oomscope.snapshot.infer.categorise import Evidence
from oomscope.snapshot.replay.ascend import sizes_asked
from oomscope.snapshot.replay.segment_map import SegmentMap
from oomscope.snapshot.sites import Site
from oomscope.snapshot.trace import Category

MOST_ROWS: Final = 400_000
"""Most blocks in a page."""
NEAR: Final = 256
"""Bins before the moment of interest, and a quarter as many after it, that are all kept."""
MOST_EXTRA: Final = 400
"""Most further events that are kept."""
NARROW: Final = 1 / 7000
"""Share of the reserved bytes below which a segment is not drawn by itself."""
TINY: Final = 1 / 56_000
"""Share of the reserved bytes below which a block is not drawn by itself."""
PENDING: Final = "pending"
POSITION: Final = {category: at for at, category in enumerate(ORDER)}


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Blocks in columns; one that an equal block replaces at the same place is one row."""

    area: Indices
    """Index into the areas of the states."""
    offset: Indices
    """Bytes from the beginning of the area."""
    size: Indices
    requested: Indices
    enter: Indices
    """The first moment that shows the block."""
    pending: Indices
    """The first moment at which the program has freed it; ``leave`` where no moment shows it so."""
    leave: Indices
    """The first moment that no longer shows the block."""
    category: Indices
    """Index into :data:`~oomscope.snapshot.explain.curves.ORDER`."""
    site: Indices
    """Index into the sites of the states."""

    def __len__(self) -> int:
        return len(self.size)

    def of(self, chosen: NDArray[np.bool_] | Indices) -> Blocks:
        """Return some of the rows."""
        return Blocks(**{name: column[chosen] for name, column in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class States:
    """Segments and blocks at m moments."""

    event: Indices
    """Event before each moment, rising; -1: before the first."""
    shown: int
    """Index of the moment of interest."""
    areas: tuple[Area, ...]
    """Areas that are drawn by themselves."""
    pages: Indices
    """Pages of expandable areas: rows of area, bytes from its beginning, size, enter and leave."""
    blocks: Blocks
    sites: tuple[Site | None, ...]
    narrow: Indices
    """Bytes of all other segments at each moment."""
    in_narrow: dict[str, Indices]
    """Bytes of the blocks in these segments by category; those that wait for a stream are :data:`PENDING`."""
    small: dict[str, Indices]
    """Bytes of blocks too small to be drawn, in segments that are."""
    small_count: Indices

    def without_blocks_below(self, size: int) -> States:
        """Return the same with blocks smaller than ``size`` as sums."""
        left_out = self.blocks.size < size
        more, count = _sums(self.blocks.of(left_out), len(self.event))
        none = np.zeros_like(count)
        small = {name: self.small.get(name, none) + more.get(name, none) for name in {**self.small, **more}}
        return replace(self, blocks=self.blocks.of(~left_out), small=small, small_count=self.small_count + count)


def states_of(
    timeline: Timeline,
    here: SegmentMap,
    bins: Bins,
    *,
    evidence: Evidence,
    describe: Describe,
    settings: AllocatorSettings,
    extra: Iterable[int] = (),
) -> States | None:
    """Return the states of a recording; None where its events contradict each other on segments.

    ``here`` is the moment of interest, known in full; ``extra`` are events to keep beside those of ``bins``.
    """
    held = held_over_time(timeline)
    if held is None:
        return None
    reserved, table = sum(segment.total_size for segment in here.segments), timeline.lifetimes
    kept = np.array([here.event, bins.total - 1, *list(extra)[:MOST_EXTRA]], dtype=np.int64)
    counts = table.size >= TINY * reserved
    event = _moments(bins, kept, table.born[counts], table.completed[counts])
    enter, leave = shown_at(event, table.born), shown_at(event, table.completed)
    rows = np.flatnonzero(enter < leave)
    rows = rows[np.argsort(table.address[rows], kind="stable")]
    areas, pages = areas_at(held, event)
    area = _area_of(areas, table.address[rows], enter[rows], leave[rows])
    if (area < 0).any():
        return None
    begins = np.array([each.address for each in areas], dtype=np.uint64)
    blocks = Blocks(
        area=area,
        offset=(table.address[rows] - begins[area]).astype(np.int64),
        size=_sizes(timeline, rows, here, settings),
        requested=table.size[rows],
        enter=enter[rows],
        pending=np.clip(shown_at(event, table.freed[rows]), enter[rows], leave[rows]),
        leave=leave[rows],
        category=np.array([POSITION[category] for category in Category], dtype=np.int64)[evidence.category[rows]],
        site=rows,
    )
    shown = int(np.searchsorted(event, here.event))
    return summed(event, shown, areas=areas, pages=pages, blocks=blocks, site_of=lambda row: describe(row)[0])


def summed(
    event: Indices,
    shown: int,
    *,
    areas: Sequence[Area],
    pages: Indices,
    blocks: Blocks,
    site_of: Callable[[int], Site | None],
) -> States:
    """Return states, as in :class:`States`, with sums for what is too small to be drawn.

    ``blocks`` have in place of sites what ``site_of`` knows.
    """
    moments = len(event)
    held = [each for each in areas if each.enter <= shown < each.leave and not each.is_expandable]
    mapped = pages[(pages[:, 3] <= shown) & (shown < pages[:, 4])]
    reserved = sum(each.size for each in held) + int(mapped[:, 2].sum())
    is_drawn = np.array([each.size >= NARROW * reserved for each in areas], dtype=bool)
    in_narrow, _ = _sums(blocks.of(~is_drawn[blocks.area]), moments)
    blocks = blocks.of(is_drawn[blocks.area])
    is_tiny = blocks.size < TINY * reserved
    small, small_count = _sums(blocks.of(is_tiny), moments)
    blocks, sites = _described(blocks.of(~is_tiny), site_of)
    number = np.cumsum(is_drawn) - 1
    drawn_pages = pages[is_drawn[pages[:, 0]]]
    drawn_pages[:, 0] = number[drawn_pages[:, 0]]
    return States(
        event=event,
        shown=shown,
        areas=tuple(each for each, drawn in zip(areas, is_drawn.tolist(), strict=True) if drawn),
        pages=drawn_pages,
        blocks=_joined(replace(blocks, area=number[blocks.area])),
        sites=sites,
        narrow=_narrow(areas, pages, is_drawn, moments),
        in_narrow=in_narrow,
        small=small,
        small_count=small_count,
    )


def _moments(bins: Bins, kept: Indices, born: Indices, gone: Indices) -> Indices:
    """Return moments, those that are to be kept among them, that show at most :data:`MOST_ROWS` blocks.

    What lies near the first of those to be kept is kept as well.
    """
    middle = max(0, int(kept[0])) // bins.per_bin
    near = bins.event[max(0, middle - NEAR) : middle + NEAR // 4]
    every = 1
    while True:
        moments = np.unique(np.concatenate([bins.highest(every), near, kept]))
        rows = int((shown_at(moments, born) < shown_at(moments, gone)).sum())
        if rows <= MOST_ROWS or every >= len(bins):
            return moments
        every *= 2 if rows < 4 * MOST_ROWS else 4


def _area_of(areas: Sequence[Area], address: NDArray[np.uint64], enter: Indices, leave: Indices) -> Indices:
    """Return the area of each block, -1 where none holds it; ``address`` rises."""
    found = np.full(len(address), -1, dtype=np.int64)
    starts = np.searchsorted(address, np.array([area.address for area in areas], dtype=np.uint64)).tolist()
    ends = np.searchsorted(address, np.array([area.end for area in areas], dtype=np.uint64)).tolist()
    for number, (area, first, beyond) in enumerate(zip(areas, starts, ends, strict=True)):
        inside = slice(first, beyond)
        found[inside][(enter[inside] < area.leave) & (leave[inside] > area.enter)] = number
    return found


def _sizes(timeline: Timeline, rows: Indices, here: SegmentMap, settings: AllocatorSettings) -> Indices:
    """Return the bytes that blocks occupy: as the file or the moment of interest has them, else by rounding.

    An end not worth splitting off then counts as free.
    """
    table = timeline.lifetimes
    asked, place = np.unique(sizes_asked(timeline)[rows], return_inverse=True)
    round_size = AllocatorState(settings, Driver(total_bytes=1)).round_size
    size = np.array([round_size(each) for each in asked.tolist()], dtype=np.int64)[place.reshape(-1)]
    at_end = np.array([block.size for _, block in active_blocks(timeline.segments or ())] or [0])
    position = table.segment_block[rows]
    size = np.where(position >= 0, at_end[position], size)
    known = [
        (here.row_at[each.address], each.size)
        for segment in here.segments
        for each in segment.blocks
        if each.state != "inactive"
    ]
    of_row = np.full(len(table), -1, dtype=np.int64)
    of_row[[row for row, _ in known]] = [each for _, each in known]
    return np.where(of_row[rows] >= 0, of_row[rows], size)


def _described(blocks: Blocks, site_of: Callable[[int], Site | None]) -> tuple[Blocks, tuple[Site | None, ...]]:
    """Return the blocks with indices into the lines that made them."""
    numbers: dict[Site | None, int] = {}
    site = [numbers.setdefault(site_of(each), len(numbers)) for each in blocks.site.tolist()]
    return replace(blocks, site=np.array(site, dtype=np.int64)), tuple(numbers)


def _joined(blocks: Blocks) -> Blocks:
    """Join blocks that follow each other at the same place, alike in size, category and line."""
    if not len(blocks):
        return blocks
    alike = (blocks.site, blocks.category, blocks.requested, blocks.size, blocks.offset, blocks.area)
    order = np.lexsort((blocks.enter, *alike))
    keys, rows = np.array(alike)[:, order], blocks.of(order)
    follows = (keys[:, 1:] == keys[:, :-1]).all(axis=0) & (rows.enter[1:] == rows.pending[:-1])
    first = np.flatnonzero(np.append(True, ~follows))
    last = np.append(first[1:], len(rows)) - 1
    return replace(rows.of(first), pending=rows.pending[last], leave=rows.leave[last])


def _sums(blocks: Blocks, moments: int) -> tuple[dict[str, Indices], Indices]:
    """Return the bytes of blocks at each moment by category, and how many there are."""
    found = {}
    for at in np.unique(blocks.category).tolist():
        own = blocks.of(blocks.category == at)
        found[ORDER[at].label] = summed_over_time(own.enter, own.pending, own.size, moments)
    if (blocks.pending < blocks.leave).any():
        found[PENDING] = summed_over_time(blocks.pending, blocks.leave, blocks.size, moments)
    return found, summed_over_time(blocks.enter, blocks.leave, np.ones_like(blocks.size), moments)


def _narrow(areas: Sequence[Area], pages: Indices, is_drawn: NDArray[np.bool_], moments: int) -> Indices:
    """Return the bytes of segments that are not drawn by themselves, at each moment."""
    rows = [
        (each.size, each.enter, each.leave)
        for each, drawn in zip(areas, is_drawn.tolist(), strict=True)
        if not drawn and not each.is_expandable
    ]
    size, enter, leave = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    own = pages[~is_drawn[pages[:, 0]]]
    return summed_over_time(enter, leave, size, moments) + summed_over_time(own[:, 3], own[:, 4], own[:, 2], moments)
