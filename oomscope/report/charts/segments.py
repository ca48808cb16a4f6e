"""The segments of the allocator, drawn to scale as one strip that is folded into lines like text.

Equal areas are equal bytes. Segments with most unused bytes come first; those too narrow to be seen are one piece at
the end that says how many they are, and neighbours too narrow within a segment are one tile that says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final
from xml.etree import ElementTree as ET

from markupsafe import Markup

from oomscope.report.charts.html import add_legend, box, figure, markup
from oomscope.report.charts.plot import Key
from oomscope.report.sentences import category_text, count
from oomscope.snapshot.explain.curves import ORDER
from oomscope.snapshot.explain.drawing import FloorPlan, PlacedBlock, PlacedSegment
from oomscope.snapshot.explain.states import NARROW, PENDING, TINY
from oomscope.snapshot.sites import Site
from oomscope.units import format_size

WIDTH: Final = 1000
"""Of a line, in the picture's units."""
HEIGHT: Final = 20
"""Of a line."""
MOST_LINES: Final = 28
GAP: Final = "gap"
NAMES_IN_ORDER: Final = (GAP, *(each.label for each in ORDER), PENDING)
NAMES: Final = {GAP: "free", PENDING: "waiting for a stream"}


@dataclass(frozen=True, kw_only=True)
class Tile:
    """Neighbouring blocks drawn as one; mostly a single one."""

    size: int
    requested: int
    free: int
    """Bytes of it in gaps."""
    count: int
    """Blocks in use."""
    category: str
    """Of most of it; ``gap`` where it is free, ``pending`` where it waits for a stream."""
    site: Site | None


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A segment, or the sum of ``segments`` folded ones."""

    address: int
    """Of a single segment; 0 for a sum."""
    size: int
    unused: int
    kind: str
    stream: int
    segments: int
    tiles: tuple[Tile, ...]
    is_folded: bool = False

    def __str__(self) -> str:
        if self.is_folded:
            many = count(self.segments, f"{self.kind} segment")
            return f"{many} too narrow to draw, together {format_size(self.size)}, {format_size(self.unused)} unused"
        stream = f", stream {self.stream:#x}" if self.stream else ""
        return f"segment of {format_size(self.size)} ({self.kind}{stream}), {format_size(self.unused)} unused"


@dataclass(frozen=True, kw_only=True)
class Strip:
    """Pieces one after another, and where the strip is folded."""

    line_bytes: int
    lines: int
    pieces: tuple[Piece, ...]
    totals: dict[str, int]
    """Bytes that blocks of each category occupy, those that wait for a stream (``pending``) and those free (``gap``);
    together what is reserved."""

    def boxes(self, at: int, size: int) -> Iterator[tuple[int, float, float]]:
        """Yield the parts of ``size`` bytes from ``at``, one a line: the line, and from where to where on it."""
        end = at + size
        while at < end:
            line = at // self.line_bytes
            stop = min(end, (line + 1) * self.line_bytes)
            left, right = ((each - line * self.line_bytes) * WIDTH / self.line_bytes for each in (at, stop))
            yield line, left, right
            at = stop

    def shapes(self) -> dict[str, list[tuple[int, float, float]]]:
        """Return the boxes of each category, free bytes first."""
        found: dict[str, list[tuple[int, float, float]]] = {name: [] for name in NAMES_IN_ORDER}
        for at, tile in self.placed():
            found[tile.category] += self.boxes(at, tile.size)
        return {name: boxes for name, boxes in found.items() if boxes}

    def placed(self) -> Iterator[tuple[int, Tile]]:
        """Yield each tile and where it begins, in bytes."""
        at = 0
        for piece in self.pieces:
            for tile in piece.tiles:
                yield at, tile
                at += tile.size

    def walls(self) -> list[tuple[int, float]]:
        """Return where segments begin: the line, and where on it; and where the last one ends."""
        ends = [0, *accumulate(piece.size for piece in self.pieces)]
        return [(at // self.line_bytes, at % self.line_bytes * WIDTH / self.line_bytes) for at in ends]

    def legend(self) -> list[Key]:
        """Return the colours that occur, with the bytes that blocks of each occupy."""
        return [
            Key(text=NAMES.get(name, category_text(name)), style=name, size=format_size(self.totals[name]))
            for name in (*NAMES_IN_ORDER[1:], GAP)
            if self.totals.get(name)
        ]

    def caption(self) -> str:
        """Return how it is read."""
        text = f"A line is {format_size(self.line_bytes)}; an upright stroke begins a segment, most unused bytes first."
        folded = next((piece for piece in self.pieces if piece.is_folded), None)
        return f"{text} At the end {folded}." if folded else text


def strip_of(plan: FloorPlan, tiny: float = TINY) -> Strip:
    """Lay out ``plan``; neighbouring blocks that are less than a ``tiny`` share of it together are one tile."""
    total = max(1, plan.reserved_bytes)
    lines = min(MOST_LINES, max(1, len(plan.segments)))
    wide = [segment for segment in plan.segments if segment.size >= NARROW * total]
    rest = [segment for segment in plan.segments if segment.size < NARROW * total]
    pieces = [_piece(segment, tiny * total) for segment in wide]
    if rest:
        pieces.append(_folded(rest))
    return Strip(line_bytes=-(-total // lines), lines=lines, pieces=tuple(pieces), totals=_totals(plan))


def _totals(plan: FloorPlan) -> dict[str, int]:
    totals: dict[str, int] = {}
    for block in (block for segment in plan.segments for block in segment.blocks):
        totals[_category(block)] = totals.get(_category(block), 0) + block.size
    return totals


def _category(block: PlacedBlock) -> str:
    return PENDING if block.is_pending else block.category or GAP


def _piece(segment: PlacedSegment, tiny: float) -> Piece:
    return Piece(
        address=segment.address,
        size=segment.size,
        unused=segment.unused,
        kind=kind_text(segment.segment_type, is_private=segment.is_private),
        stream=segment.stream,
        segments=1,
        tiles=tuple(_tile(run) for run in _runs(segment.blocks, tiny)),
    )


def kind_text(segment_type: str, *, is_private: bool) -> str:
    """Return ``large, private pool``."""
    return f"{segment_type}{', private pool' if is_private else ''}"


def _runs(blocks: Sequence[PlacedBlock], tiny: float) -> Iterator[list[PlacedBlock]]:
    """Yield each block by itself, and neighbours that are tiny together."""
    run: list[PlacedBlock] = []
    for block in blocks:
        if run and sum(each.size for each in run) + block.size > tiny:
            yield run
            run = []
        run.append(block)
    if run:
        yield run


def _tile(run: Sequence[PlacedBlock]) -> Tile:
    largest = max(run, key=lambda block: block.size)
    return Tile(
        size=sum(block.size for block in run),
        requested=sum(block.requested for block in run),
        free=sum(block.size for block in run if not block.category),
        count=sum(bool(block.category) for block in run),
        category=_category(largest),
        site=largest.site,
    )


def _folded(segments: Sequence[PlacedSegment]) -> Piece:
    """Return many segments as one piece with a tile for each category and one for what is free."""
    groups: dict[str, list[PlacedBlock]] = {}
    for segment in segments:
        for block in segment.blocks:
            groups.setdefault(_category(block), []).append(block)
    tiles = [replace(_tile(blocks), site=None) for blocks in groups.values()]
    return Piece(
        address=0,
        size=sum(segment.size for segment in segments),
        unused=sum(segment.unused for segment in segments),
        kind=" and ".join(sorted({segment.segment_type for segment in segments}, reverse=True)),
        stream=-1,
        segments=len(segments),
        tiles=tuple(sorted(tiles, key=lambda tile: -tile.size)),
        is_folded=True,
    )


def segment_chart(strip: Strip, name: str, *, table: str, when: str, kept: str = "") -> Markup:
    """Return the map as a figure.

    Args:
        strip: what is drawn.
        name: id of the element with the states that a script draws.
        table: id of the table in which a code line is looked up.
        when: the moment, in words.
        kept: which other moments can be shown; empty where none is known.
    """
    chart = figure("segments", f"Segments {when}, to scale")
    chart.set("data-segments", name)
    chart.set("data-table", table)
    if kept:
        _add_slider(chart, when, kept)
    map_box = box(chart, "map", tag="div", height=f"{strip.lines * HEIGHT}px")
    size = f"0 0 {WIDTH} {strip.lines * HEIGHT}"
    svg = ET.SubElement(map_box, "svg", viewBox=size, preserveAspectRatio="none", role="presentation")
    for category, boxes in strip.shapes().items():
        ET.SubElement(svg, "path", {"class": f"fill {category}", "d": "".join(_box(*each) for each in boxes)})
    walls = (f"M{x:.2f},{line * HEIGHT + 1}v{HEIGHT - 2}" for line, x in strip.walls())
    ET.SubElement(svg, "path", {"class": "walls", "d": "".join(walls)})
    line = box(chart, "readout soft", strip.caption(), tag="p")
    line.set("aria-live", "polite")
    add_legend(chart, strip.legend())
    return markup(chart)


def _add_slider(chart: ET.Element, when: str, kept: str) -> None:
    """Add what chooses the moment, hidden where no script runs."""
    controls = box(chart, "controls", tag="div")
    controls.set("hidden", "")
    slider = ET.SubElement(controls, "input", {"type": "range", "min": "0", "aria-label": "moment of the map"})
    slider.set("class", "moments")
    button = box(controls, "button", when.capitalize(), tag="button")
    button.set("type", "button")
    box(controls, "when")
    box(controls, "hint soft", kept)


def _box(line: int, left: float, right: float) -> str:
    """Return the path of a part of a block."""
    return f"M{left:.2f},{line * HEIGHT + 2}H{right:.2f}v{HEIGHT - 4}H{left:.2f}z"
