"""Where segments lie on the map at every moment, so that nothing moves when the moment changes.

At the moment of interest they lie as :mod:`oomscope.report.charts.segments` draws them. A segment that is taken later,
or was given back before, takes the first place that is free as long as it lasts; what finds none comes behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

import numpy as np

from oomscope.report.charts.html import packed
from oomscope.report.charts.segments import NAMES, NAMES_IN_ORDER, Strip, kind_text
from oomscope.report.sentences import category_text, count, site_text
from oomscope.snapshot.accounting.lifetimes import Indices
from oomscope.snapshot.explain.areas import Area
from oomscope.snapshot.explain.states import Blocks, States
from oomscope.snapshot.replay.initial_memory import AddressRanges
from oomscope.units import format_size


class Place(NamedTuple):
    """Where on the strip a part of an area lies."""

    area: int
    offset: int
    """Bytes from the beginning of the area."""
    size: int
    at: int
    """Bytes from the beginning of the strip."""


def state_data(states: States, strip: Strip) -> dict[str, Any]:
    """Return all moments as JSON values for the script; the strip shows one of them."""
    places, folded_at, end = _places(states, strip)
    return {
        "lineBytes": strip.line_bytes,
        "lines": -(-end // strip.line_bytes),
        "shown": states.shown,
        "foldedAt": folded_at,
        "styles": NAMES_IN_ORDER,
        "categories": [NAMES.get(name, category_text(name)) for name in NAMES_IN_ORDER],
        "sites": ["" if site is None else site_text(site) for site in states.sites],
        "areas": [area_text(area) for area in states.areas],
        "addresses": [hex(area.address) for area in states.areas],
        "folded": [NAMES_IN_ORDER.index(name) for name in states.in_narrow],
        "small": [NAMES_IN_ORDER.index(name) for name in states.small],
        "pages": packed(_sorted(_pages(states, places))),
        "blocks": packed(_sorted(_rows(states.blocks, places))),
        **packed([states.event, states.narrow, *states.in_narrow.values(), *states.small.values(), states.small_count]),
    }


def kept_text(states: States, events: int) -> str:
    """Return which moments can be shown, and what of them is not drawn."""
    text = "Every event can be shown"
    if len(states.event) < events:
        text = f"{len(states.event):,} moments of {count(events, 'event')} can be shown"
    if states.small_count.any():
        largest = int(np.sum(list(states.small.values()), axis=0).max())
        text += f". Blocks too small to draw, {format_size(largest)} at most, look free; the sums count them"
    return f"{text}."


def area_text(area: Area) -> str:
    """Return ``segment of 20.00 MiB (large, stream 0x7f)``."""
    kind = kind_text(area.segment_type, is_private=area.is_private)
    stream = f"stream {area.stream:#x}" if area.stream else ""
    what = "addresses of an expandable segment," if area.is_expandable else "segment of"
    details = ", ".join(filter(None, (kind, stream)))
    return f"{what} {format_size(area.size)}{f' ({details})' if details else ''}"


def _places(states: States, strip: Strip) -> tuple[list[Place], int, int]:
    """Return where all areas lie, where the narrow segments begin, and where the strip ends at most."""
    areas, shown = states.areas, states.shown
    whole = {each.address: at for at, each in enumerate(areas) if not each.is_expandable and _is_there(each, shown)}
    paged = [(at, each) for at, each in enumerate(areas) if each.is_expandable]
    places, at = [], 0
    for piece in strip.pieces:
        if piece.address is None:
            break
        owner = next((number for number, area in paged if area.address <= piece.address < area.end), None)
        owner = whole.get(piece.address, owner)
        if owner is not None:
            places.append(Place(owner, piece.address - areas[owner].address, piece.size, at))
        at += piece.size
    behind = at + int(states.narrow.max(initial=0))
    for number, area in paged:
        for start, end in _not_placed(area, [place for place in places if place.area == number]):
            places.append(Place(number, start, end - start, behind))
            behind += end - start
    moments = len(states.event)
    now = [(areas[place.area], place.at) for place in places if not areas[place.area].is_expandable]
    later = [at for at, each in enumerate(areas) if not each.is_expandable and each.enter > shown]
    before = [at for at, each in enumerate(areas) if not each.is_expandable and each.leave <= shown]
    ends = [behind]
    for numbers, mirrored in ((later, False), (before, True)):
        spans = [_span(areas[number], moments, mirrored=mirrored) for number in numbers]
        taken = [(_span(area, moments, mirrored=mirrored)[1], start, area.size) for area, start in now]
        starts, end = _first_fit(spans, [areas[number].size for number in numbers], taken, behind)
        places += [Place(number, 0, areas[number].size, start) for number, start in zip(numbers, starts, strict=True)]
        ends.append(end)
    return places, at, max(ends)


def _is_there(area: Area, moment: int) -> bool:
    return area.enter <= moment < area.leave


def _span(area: Area, moments: int, *, mirrored: bool) -> tuple[int, int]:
    """Return from which moment to which an area lasts; mirrored, time runs backwards."""
    return (moments - area.leave, moments - area.enter) if mirrored else (area.enter, area.leave)


def _not_placed(area: Area, places: Sequence[Place]) -> list[tuple[int, int]]:
    left = AddressRanges()
    left.add(0, area.size)
    for place in places:
        left.remove(place.offset, place.offset + place.size)
    return list(left)


def _first_fit(
    spans: Sequence[tuple[int, int]], sizes: Sequence[int], taken: list[tuple[int, int, int]], end: int
) -> tuple[list[int], int]:
    """Return where each area begins, and where the strip, which ended at ``end``, ends.

    ``spans`` are the moments that each lasts; ``taken`` says of what is there at first until when, where, and how many
    bytes.
    """
    heapify(taken)
    free, starts = AddressRanges(), [0] * len(spans)
    for number in sorted(range(len(spans)), key=lambda each: (spans[each][0], -sizes[each])):
        (enter, leave), size = spans[number], sizes[number]
        while taken and taken[0][0] <= enter:
            _, start, freed = heappop(taken)
            free.add(start, start + freed)
        start = next((low for low, high in free if high - low >= size), end)
        if start == end:
            end += size
        else:
            free.remove(start, start + size)
        starts[number] = start
        heappush(taken, (leave, start, size))
    return starts, end


def _pages(states: States, places: Sequence[Place]) -> list[Indices]:
    """Return what is held, as columns: where, bytes, enter, leave, area, and bytes from the beginning of the area."""
    whole = [
        (at, 0, each.size, each.enter, each.leave) for at, each in enumerate(states.areas) if not each.is_expandable
    ]
    area, offset, size, enter, leave = np.concatenate([np.array(whole, dtype=np.int64).reshape(-1, 5), states.pages]).T
    row, at, start, part = _cut(area, offset, size, places)
    return [at, part, enter[row], leave[row], area[row], start]


def _rows(blocks: Blocks, places: Sequence[Place]) -> list[Indices]:
    """Return the blocks as columns: where, bytes here and elsewhere, requested, three moments, category, site."""
    row, at, _, part = _cut(blocks.area, blocks.offset, blocks.size, places)
    own = blocks.of(row)
    lasts, given_up = own.leave - own.enter, own.leave - own.pending
    return [at, part, own.size - part, own.requested, own.enter, lasts, given_up, own.category + 1, own.site]


def _cut(
    area: Indices, offset: Indices, size: Indices, places: Sequence[Place]
) -> tuple[Indices, Indices, Indices, Indices]:
    """Return the parts of some ranges, one a place: which range, where on the strip, from which offset, bytes."""
    order = np.argsort(area, kind="stable")
    sorted_area = area[order]
    found = []
    for place in places:
        first, beyond = np.searchsorted(sorted_area, [place.area, place.area + 1]).tolist()
        own = order[first:beyond]
        start = np.maximum(offset[own], place.offset)
        end = np.minimum(offset[own] + size[own], place.offset + place.size)
        inside = start < end
        start, end = start[inside], end[inside]
        found.append(np.stack([own[inside], start - place.offset + place.at, start, end - start]))
    row, at, start, part = np.concatenate([np.zeros((4, 0), dtype=np.int64), *found], axis=1)
    return row, at, start, part


def _sorted(columns: Sequence[Indices]) -> list[Indices]:
    order = np.argsort(columns[0], kind="stable")
    return [column[order] for column in columns]
