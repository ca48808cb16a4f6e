"""Points of bytes against time, with the best of them joined by a line; words stay as large as the page's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from markupsafe import Markup

from oomscope.report.area import SIDE, ticks
from oomscope.report.markup import Level, box, figure, markup, scale, share
from oomscope.units import format_size

HEADROOM = 1.06
"""The axes end a little beyond the largest value, so that no point lies on the edge."""

FARTHEST = 2
"""A level this many times above all points is named, not drawn: they would be too close to each other."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One combination."""

    label: str
    """Its number, as the table has it."""
    title: str
    """What is said where it is pointed at."""
    time: float
    """Share by which it is slower than the quickest."""
    size: int
    tone: str
    """CSS class: ``good`` where it fits, ``bad`` where not."""
    is_best: bool
    """Whether it is on the front: it has a label, and the line runs through it."""


def scatter(points: Sequence[Point], *, title: str, level: Level | None = None) -> Markup:
    """Return a chart of ``points``: time to the right, bytes upwards, both from zero."""
    chart = figure("area scatter", title)
    largest = round(HEADROOM * max((point.size for point in points), default=0))
    on_scale = level is not None and level.value <= FARTHEST * largest
    top, _ = scale(largest, level if on_scale else None)
    slowest = HEADROOM * max((point.time for point in points), default=0.0) or 1.0
    plot = box(chart, "plot", tag="div")
    for tick in ticks(top):
        line = box(plot, "grid", bottom=share(tick, top))
        box(line, "tick", format_size(tick, digits=1) if tick else "0")
    if level and on_scale:
        line = box(plot, "level", bottom=share(level.value, top))
        box(line, "level-name", f"{level.label} {format_size(level.value)}")
    svg = ET.SubElement(plot, "svg", viewBox=f"0 0 {SIDE} {SIDE}", preserveAspectRatio="none", role="presentation")
    front = sorted((point for point in points if point.is_best), key=lambda point: point.time)
    ET.SubElement(svg, "polyline", {"class": "curve", "points": _steps(front, slowest, top)})
    for point in points:
        place = {"left": share(point.time, slowest), "bottom": share(point.size, top)}
        dot = box(plot, f"dot {point.tone}{' best' if point.is_best else ''}", **place)
        dot.set("title", point.title)
        if point.is_best:
            box(dot, "dot-name", point.label)
    ends = box(chart, "ends", tag="div")
    box(ends, "end", "+0 % time")
    if level and not on_scale:
        box(ends, "end", f"{level.label} {format_size(level.value)}: off the scale")
    box(ends, "end", f"+{100 * slowest:.0f} % time")
    return markup(chart)


def _steps(front: Sequence[Point], slowest: float, top: int) -> str:
    """Return the line under which no combination lies: level up to the next that needs less, then down to it."""
    corners: list[tuple[float, int]] = []
    for point in front:
        if corners:
            corners.append((point.time, corners[-1][1]))
        corners.append((point.time, point.size))
    return " ".join(f"{SIDE * time / slowest:.1f},{SIDE * (1 - size / top):.1f}" for time, size in corners)
