"""The segments of the allocator, drawn to scale as one strip that is folded into lines like text.

Equal areas are equal bytes. Segments with most unused bytes come first; those too narrow to be seen are one piece at
the end that says how many they are, and neighbours too narrow within a segment are one tile that says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple, TypeAlias
from xml.etree import ElementTree as ET

from markupsafe import Markup

from oomscope.report.charts.html import add_button, add_controls, add_legend, box, figure, markup
from oomscope.report.charts.plot import Key
from oomscope.report.sentences import category_text, count
from oomscope.snapshot.explain.curves import ORDER
from oomscope.snapshot.explain.drawing import FloorPlan
from oomscope.snapshot.explain.states import NARROW, PENDING, TINY
from oomscope.snapshot.trace import Segment
from oomscope.units import format_size

WIDTH: Final = 1000
"""Width of a line, in the picture's units."""
HEIGHT: Final = 20
"""Height of a line, in the picture's units."""
MOST_LINES: Final = 28
GAP: Final = "gap"
NAMES_IN_ORDER: Final = (GAP, *(each.label for each in ORDER), PENDING)
NAMES: Final = {GAP: "free", PENDING: "waiting for a stream"}


Tile: TypeAlias = tuple[str, int]
"""Neighbouring blocks: what most of them are (a category, ``gap`` or ``pending``), and the bytes of all."""


class Piece(NamedTuple):
    """A segment; the last piece of a strip may be the sum of many, without an address."""

    address: int | None
    tiles: tuple[Tile, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(size for _, size in self.tiles)


@dataclass(frozen=True, kw_only=True)
class Strip:
    """Pieces one after another, and where the strip is folded."""

    line_bytes: int
    lines: int
    pieces: tuple[Piece, ...]
    totals: dict[str, int]
    """Bytes that blocks of each category occupy, those that wait for a stream (``pending``) and those free (``gap``);
    together what is reserved."""
    caption: str
    """Explanation of the strip."""

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
        at = 0
        for category, size in (tile for piece in self.pieces for tile in piece.tiles):
            found[category] += self.boxes(at, size)
            at += size
        return {name: boxes for name, boxes in found.items() if boxes}

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


def strip_of(plan: FloorPlan, tiny: float = TINY) -> Strip:
    """Lay out ``plan``; neighbouring blocks that are less than a ``tiny`` share of it together are one tile."""
    total = max(1, plan.reserved_bytes)
    lines = min(MOST_LINES, max(1, len(plan.segments)))
    line_bytes = -(-total // lines)
    tiles = {segment.address: _tiles(segment, plan) for segment in plan.segments}
    wide = [segment for segment in plan.segments if segment.total_size >= NARROW * total]
    rest = [segment for segment in plan.segments if segment.total_size < NARROW * total]
    pieces = [Piece(each.address, tuple(_joined(tiles[each.address], tiny * total))) for each in wide]
    caption = f"A line is {format_size(line_bytes)}; an upright stroke begins a segment, most unused bytes first."
    if rest:
        sums = _sums(tile for each in rest for tile in tiles[each.address])
        pieces.append(Piece(None, tuple(sorted(sums.items(), key=lambda tile: -tile[1]))))
        kinds = " and ".join(sorted({each.segment_type for each in rest}, reverse=True))
        unused = f"together {format_size(pieces[-1].size)}, {format_size(sums[GAP])} unused"
        caption += f" At the end {count(len(rest), f'{kinds} segment')} too narrow to draw, {unused}."
    totals = _sums(tile for each in tiles.values() for tile in each)
    return Strip(line_bytes=line_bytes, lines=lines, pieces=tuple(pieces), totals=totals, caption=caption)


def _tiles(segment: Segment, plan: FloorPlan) -> list[Tile]:
    names = {"inactive": GAP, "active_pending_free": PENDING}
    return [(names.get(block.state) or plan.made[block.address][1], block.size) for block in segment.blocks]


def _sums(tiles: Iterable[Tile]) -> Counter[str]:
    totals: Counter[str] = Counter()
    for category, size in tiles:
        totals[category] += size
    return totals


def _joined(tiles: Sequence[Tile], tiny: float) -> Iterator[Tile]:
    """Yield each tile by itself, and neighbours that are tiny together as one, named after the largest."""
    run: list[Tile] = []
    together = 0
    for tile in (*tiles, None):
        if run and (tile is None or together + tile[1] > tiny):
            yield max(run, key=lambda each: each[1])[0], together
            run, together = [], 0
        if tile:
            run.append(tile)
            together += tile[1]


def kind_text(segment_type: str, *, is_private: bool) -> str:
    """Return ``large, private pool``."""
    return f"{segment_type}{', private pool' if is_private else ''}"


def segment_chart(strip: Strip, name: str, *, table: str, when: str, kept: str = "") -> Markup:
    """Return the map at the moment ``when`` as a figure; ``kept`` says which other moments can be shown, if any.

    ``name`` and ``table`` are ids, of the states that a script draws and of the table of code lines.
    """
    chart = figure("segments", f"Segments {when}, to scale", segments=name, table=table)
    if kept:
        _add_slider(chart, when, kept)
    map_box = box(chart, "map", tag="div", height=f"{strip.lines * HEIGHT}px")
    size = f"0 0 {WIDTH} {strip.lines * HEIGHT}"
    svg = ET.SubElement(map_box, "svg", viewBox=size, preserveAspectRatio="none", role="presentation")
    for category, boxes in strip.shapes().items():
        ET.SubElement(svg, "path", {"class": f"fill {category}", "d": "".join(_box(*each) for each in boxes)})
    walls = (f"M{x:.2f},{line * HEIGHT + 1}v{HEIGHT - 2}" for line, x in strip.walls())
    ET.SubElement(svg, "path", {"class": "walls", "d": "".join(walls)})
    line = box(chart, "readout soft", strip.caption, tag="p")
    line.set("aria-live", "polite")
    add_legend(chart, strip.legend())
    return markup(chart)


def _add_slider(chart: ET.Element, when: str, kept: str) -> None:
    """Add what chooses the moment."""
    controls = add_controls(chart)
    slider = ET.SubElement(controls, "input", {"type": "range", "min": "0", "aria-label": "moment of the map"})
    slider.set("class", "moments")
    add_button(controls, when.capitalize())
    box(controls, "when")
    box(controls, "hint soft", kept)


def _box(line: int, left: float, right: float) -> str:
    return f"M{left:.2f},{line * HEIGHT + 2}H{right:.2f}v{HEIGHT - 4}H{left:.2f}z"
