"""Say what live bytes belong to: category, code line, module, moment. Every table sums exactly to what it explains.

What cannot be attributed (no stack, alive before the recording began) is a row of its own, never spread over others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Final

import numpy as np
from numpy.typing import NDArray

from oomscope.snapshot.lifetimes import BEFORE, Indices, active_blocks
from oomscope.snapshot.sites import Site, SiteBytes, site_of
from oomscope.snapshot.timeline import Timeline
from oomscope.snapshot.trace import Category, Moment, Stack

SiteOf = Callable[[Stack, str], Site | None]
"""Chooses the line that stands for a stack, given the stack and the module; None where the stack is empty."""

NO_STACK: Final = Site(file="", line=0, function="(no stack recorded)")
OLDER: Final = Site(file="", line=0, function="(alive before the recording began)")


@dataclass(frozen=True, kw_only=True)
class Growth:
    """What one line holds in two live sets; a line that only one of them has holds nothing in the other."""

    site: Site
    """The line as it is afterwards, or as it was where it is gone."""
    category: str
    before_bytes: int
    after_bytes: int

    @property
    def bytes(self) -> int:
        """Growth; negative where it shrank."""
        return self.after_bytes - self.before_bytes


def by_category(timeline: Timeline, event: int) -> dict[str, int]:
    """Return live requested bytes by category right after ``event``, largest first; ``unknown`` is a row too."""
    totals = _totals(timeline, event, timeline.trace.category)
    return {Category(category).label: size for category, size in totals}


def by_module(timeline: Timeline, event: int) -> dict[str, int]:
    """Return live requested bytes by dotted module path, largest first; ``""`` holds what no module is known of."""
    return {timeline.trace.modules[index]: size for index, size in _totals(timeline, event, timeline.trace.module_id)}


def by_moment(timeline: Timeline, event: int) -> dict[Moment, int]:
    """Return live requested bytes by the moment of their allocation, largest first; the unknown moment included."""
    return {timeline.trace.moments[index]: size for index, size in _totals(timeline, event, timeline.trace.moment_id)}


def by_site(timeline: Timeline, event: int, choose: SiteOf = site_of) -> tuple[SiteBytes, ...]:
    """Return live requested bytes by line, module and category right after ``event``, largest first.

    What was allocated in backward counts for the forward line that caused it, where that is known; what was alive
    before the recording for the stack that the final segments keep.

    Args:
        timeline: the trace.
        event: the event; -1 for what was there before the first.
        choose: which line stands for a stack.
    """
    table, trace = timeline.lifetimes, timeline.trace
    rows = timeline.live_at(event)
    stacks = _stacks(timeline, rows)
    modules = _column(timeline, rows, trace.module_id)
    categories = _column(timeline, rows, trace.category)
    chosen: dict[tuple[Stack, int], Site | None] = {}
    totals: dict[tuple[Site, int], list[int]] = {}
    for row, stack, module, category in zip(rows.tolist(), stacks, modules.tolist(), categories.tolist(), strict=True):
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


def grew(before: Iterable[SiteBytes], after: Iterable[SiteBytes]) -> tuple[Growth, ...]:
    """Return what each line gained or lost between two live sets, largest gain first; lines without change left out.

    Lines are matched by file, function and category, and inside a function in their order, because an edit moves the
    lines below it. Modules are added up. The rows sum exactly to the difference of the two sets.
    """
    old, new = _lines(before), _lines(after)
    rows = [row for place in old.keys() | new.keys() for row in _matched(old.get(place, []), new.get(place, []))]
    changed = [row for row in rows if row.bytes]
    return tuple(sorted(changed, key=lambda row: (-row.bytes, str(row.site), row.category)))


def _column(timeline: Timeline, rows: Indices, column: NDArray[np.integer]) -> Indices:
    """Return a column of the alloc events of ``rows``; 0, the unknown, for what was alive before."""
    born = timeline.lifetimes.born[rows]
    values = np.zeros(len(rows), dtype=np.int64)
    values[born != BEFORE] = column[born[born != BEFORE]]
    return values


def _totals(timeline: Timeline, event: int, column: NDArray[np.integer]) -> list[tuple[int, int]]:
    """Return the distinct values of a column among the live blocks, each with its bytes, largest first."""
    rows = timeline.live_at(event)
    values, place = np.unique(_column(timeline, rows, column), return_inverse=True)
    totals = np.zeros(len(values), dtype=np.int64)
    np.add.at(totals, place, timeline.lifetimes.size[rows])
    return sorted(zip(values.tolist(), totals.tolist(), strict=True), key=lambda item: (-item[1], item[0]))


def _stacks(timeline: Timeline, rows: Indices) -> Iterator[Stack]:
    """Yield the stack that stands for each block: the forward's behind it, its own, or the one the segments keep."""
    table, trace, segments = timeline.lifetimes, timeline.trace, timeline.segments or ()
    older = bool((table.born[rows] == BEFORE).any())
    kept = [segments[place.segment].blocks[place.block].stack for place in active_blocks(segments)] if older else []
    for born, block in zip(table.born[rows].tolist(), table.segment_block[rows].tolist(), strict=True):
        if born != BEFORE:
            yield trace.stacks[trace.forward_stack_id[born] or trace.stack_id[born]]
        else:
            yield kept[block] if block >= 0 else ()


class _Line:
    """What one line holds, over all modules."""

    def __init__(self, site: Site, category: str) -> None:
        self.site = site
        self.category = category
        self.bytes = 0


def _lines(rows: Iterable[SiteBytes]) -> dict[tuple[str, str, str], list[_Line]]:
    """Return the lines of each function and category in their order."""
    lines: dict[tuple[Site, str], _Line] = {}
    for row in rows:
        site = Site(file=row.site.file, line=row.site.line, function=row.site.function)
        lines.setdefault((site, row.category), _Line(site, row.category)).bytes += row.bytes
    places: dict[tuple[str, str, str], list[_Line]] = {}
    for line in sorted(lines.values(), key=lambda line: line.site.line):
        places.setdefault((line.site.file, line.site.function, line.category), []).append(line)
    return places


def _matched(before: Sequence[_Line], after: Sequence[_Line]) -> Iterator[Growth]:
    """Yield the growth of each line of one function: lines of equal bytes are the same, the rest go by their order."""
    sizes = [line.bytes for line in before], [line.bytes for line in after]
    for tag, a, b, c, d in SequenceMatcher(None, *sizes, autojunk=False).get_opcodes():
        if tag == "equal" or b - a == d - c:
            for was, now in zip(before[a:b], after[c:d], strict=True):
                yield Growth(site=now.site, category=now.category, before_bytes=was.bytes, after_bytes=now.bytes)
        else:
            for line in before[a:b]:
                yield Growth(site=line.site, category=line.category, before_bytes=line.bytes, after_bytes=0)
            for line in after[c:d]:
                yield Growth(site=line.site, category=line.category, before_bytes=0, after_bytes=line.bytes)
