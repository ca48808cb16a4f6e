"""The memory that the allocator holds from the driver over a whole recording: which segment or page is there when.

The file has the segments of the end; from there events are undone one by one, as in
:mod:`oomscope.snapshot.replay.initial_memory`, and what each one took or gave back says how long it lasted.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from oomscope.allocator.engine.constants import SMALL_SEGMENT
from oomscope.snapshot.accounting.lifetimes import BEFORE, Indices
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.replay.initial_memory import SEGMENT_ACTIONS
from oomscope.snapshot.trace import DEFAULT_POOL, Action, Trace


class Area(NamedTuple):
    """A segment of ``cudaMalloc``, or a range of pages of an expandable one, while it is held."""

    address: int
    size: int
    enter: int
    """The event that takes it from the driver (:data:`BEFORE`: it was there), or the first moment that shows it."""
    leave: int
    """The event that gives it back, or the first moment that no longer shows it."""
    stream: int
    segment_type: str
    """Type of the segment; empty where it is unknown."""
    is_expandable: bool
    is_private: bool

    @property
    def end(self) -> int:
        """The address behind it."""
        return self.address + self.size

    def part(self, start: int, end: int) -> Area:
        """Return a part of its addresses."""
        return self._replace(address=start, size=end - start)


def held_over_time(timeline: Timeline) -> tuple[Area, ...] | None:
    """Return what was held, in events; None where the events contradict each other or the segments at the end."""
    trace, end = timeline.trace, len(timeline.trace)
    segments: dict[int, Area] = {}
    pages, found = _Pages(), []
    for each in timeline.segments or ():
        is_private = each.pool_id != DEFAULT_POOL
        area = Area(
            *(each.address, each.total_size, BEFORE, end, each.stream, each.segment_type),
            is_expandable=each.is_expandable,
            is_private=is_private,
        )
        if not area.is_expandable:
            segments[area.address] = area
        elif not pages.add(area):
            return None
    for event in np.flatnonzero(np.isin(trace.action, SEGMENT_ACTIONS))[::-1].tolist():
        given = _of_event(trace, event)
        action = trace.action[event]
        if action == Action.SEGMENT_ALLOC:
            taken = segments.pop(given.address, None)
            if taken is None or taken.size != given.size:
                return None
            found.append(taken._replace(enter=event))
        elif action == Action.SEGMENT_FREE:
            if given.address in segments:
                return None
            segments[given.address] = given
        elif action == Action.SEGMENT_MAP:
            cut = pages.cut(given.address, given.end)
            if sum(each.size for each in cut) != given.size:
                return None
            found += [each._replace(enter=event) for each in cut]
        elif not pages.add(given):
            return None
    return (*found, *segments.values(), *pages)


def _of_event(trace: Trace, event: int) -> Area:
    """Return what an event gives back, as it was before."""
    size, is_expandable = int(trace.size[event]), trace.action[event] == Action.SEGMENT_UNMAP
    return Area(
        *(int(trace.address[event]), size, BEFORE, event, int(trace.stream[event])),
        segment_type="" if is_expandable else "small" if size == SMALL_SEGMENT else "large",
        is_expandable=bool(is_expandable),
        is_private=trace.pools[trace.pool_id[event]] != DEFAULT_POOL,
    )


class _Pages:
    """Ranges of mapped pages, none of which overlap."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._areas: list[Area] = []

    def __iter__(self) -> Iterator[Area]:
        return iter(self._areas)

    def add(self, area: Area) -> bool:
        """Take a range in; return whether nothing of it was there before."""
        at = bisect_left(self._starts, area.address)
        if (at and self._areas[at - 1].end > area.address) or (at < len(self._areas) and self._starts[at] < area.end):
            return False
        self._starts.insert(at, area.address)
        self._areas.insert(at, area)
        return True

    def cut(self, start: int, end: int) -> list[Area]:
        """Take out, and return, the parts of a range that are there."""
        first, beyond = bisect_right(self._starts, start), bisect_left(self._starts, end)
        if first and self._areas[first - 1].end > start:
            first -= 1
        touched = self._areas[first:beyond]
        ends = [(area, low, high) for area in touched for low, high in ((area.address, start), (end, area.end))]
        left = [area.part(low, high) for area, low, high in ends if low < high]
        self._starts[first:beyond] = [area.address for area in left]
        self._areas[first:beyond] = left
        return [area.part(max(area.address, start), min(area.end, end)) for area in touched]


def shown_at(moments: Indices, event: Indices) -> Indices:
    """Return the first of ``moments``, which are events that rise, at which each event has happened."""
    return np.searchsorted(moments, event, side="left").astype(np.int64)


def areas_at(held: Sequence[Area], moments: Indices) -> tuple[list[Area], Indices]:
    """Return the areas that any moment shows, and the pages of the expandable ones.

    All pages of an expandable segment are one area, whose addresses are those at which any were mapped.

    Returns:
        The areas, in moments; and pages as rows of the number of their area, bytes from its beginning, size, enter
        and leave.
    """
    enter = shown_at(moments, np.array([area.enter for area in held], dtype=np.int64)).tolist()
    leave = shown_at(moments, np.array([area.leave for area in held], dtype=np.int64)).tolist()
    seen = [
        area._replace(enter=first, leave=beyond)
        for area, first, beyond in zip(held, enter, leave, strict=True)
        if first < beyond
    ]
    areas = [area for area in seen if not area.is_expandable]
    pages: list[list[int]] = []
    joined: Area | None = None
    for page in sorted(area for area in seen if area.is_expandable):
        if joined is None or page.address > joined.end:
            joined = page
            areas.append(joined)
        else:
            joined = areas[-1] = joined._replace(
                size=max(joined.end, page.end) - joined.address,
                enter=min(joined.enter, page.enter),
                leave=max(joined.leave, page.leave),
                segment_type=joined.segment_type or page.segment_type,
            )
        pages.append([len(areas) - 1, page.address - joined.address, page.size, page.enter, page.leave])
    return areas, np.array(_touching(pages), dtype=np.int64).reshape(-1, 5)


def _touching(pages: list[list[int]]) -> list[list[int]]:
    """Join pages side by side that come and go together."""
    joined: list[list[int]] = []
    for area, offset, size, enter, leave in sorted(pages, key=lambda row: (row[0], row[3], row[4], row[1])):
        last = joined[-1] if joined else None
        if last and [last[0], last[1] + last[2], last[3], last[4]] == [area, offset, enter, leave]:
            last[2] += size
        else:
            joined.append([area, offset, size, enter, leave])
    return joined
