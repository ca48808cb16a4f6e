"""A filled curve over the events of a run. Curve and lines are stretched to the room there is, the words are not."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree as ET

from markupsafe import Markup

from oomscope.report.markup import Level, box, figure, markup, scale, share
from oomscope.units import GiB, KiB, MiB, TiB, format_size

SIDE = 1000
"""Width and height of the curve in its own units."""
TICKS = 5


def area(values: Sequence[int], *, title: str, level: Level | None = None) -> Markup:
    """Return ``values`` over time as a filled curve from zero, with ticks in a round unit."""
    chart = figure("area", title)
    top, on_scale = scale(max(values, default=0), level)
    plot = box(chart, "plot", tag="div")
    for tick in ticks(top):
        line = box(plot, "grid", bottom=share(tick, top))
        box(line, "tick", format_size(tick, digits=1) if tick else "0")
    svg = ET.SubElement(plot, "svg", viewBox=f"0 0 {SIDE} {SIDE}", preserveAspectRatio="none", role="presentation")
    if values:
        points = [
            (SIDE * index / max(1, len(values) - 1), SIDE * (1 - value / top)) for index, value in enumerate(values)
        ]
        curve = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        ET.SubElement(svg, "polygon", {"class": "fill", "points": f"0,{SIDE} {curve} {points[-1][0]:.1f},{SIDE}"})
        ET.SubElement(svg, "polyline", {"class": "curve", "points": curve})
    if level and on_scale:
        line = box(plot, "level", bottom=share(level.value, top))
        box(line, "level-name", f"{level.label} {format_size(level.value)}")
    ends = box(chart, "ends", tag="div")
    box(ends, "end", "first event")
    if level and not on_scale:
        box(ends, "end", f"{level.label} {format_size(level.value)}: off the scale")
    box(ends, "end", "last event")
    return markup(chart)


def ticks(top: int, wanted: int = TICKS) -> list[int]:
    """Return round values from 0 to ``top``: 1, 2 or 5 times a power of ten of the unit that ``top`` is shown in."""
    unit = next((unit for unit in (TiB, GiB, MiB, KiB) if top >= unit), 1)
    rough = top / unit / wanted
    power = 10.0 ** (len(str(int(rough))) - 1) if rough >= 1 else 0.1
    step = next((power * factor for factor in (1, 2, 5, 10) if power * factor >= rough), power * 10)
    size = max(1, round(step * unit))
    return list(range(0, top + 1, size))
