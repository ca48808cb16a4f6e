"""Horizontal bars on one scale: names left, numbers right, each in a column of its own, so that nothing collides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from markupsafe import Markup

from oomscope.report.charts.html import box, figure, markup, share
from oomscope.report.charts.plot import Level, axis_from_zero
from oomscope.units import format_size


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One row of a bar chart."""

    label: str
    value: int
    text: str = ""
    """What stands at the end of the row; the size when empty."""
    tone: str = "accent"
    """CSS class: ``accent``, ``good``, ``bad`` or ``quiet``."""
    start: int = 0
    """Where the bar begins: 0, or the level that a step of a waterfall starts from."""


def bars(rows: Sequence[Bar], *, title: str, level: Level | None = None) -> Markup:
    """Return horizontal bars; one with a negative value reaches left of its start."""
    chart = figure("bars", title)
    largest = max((max(row.start, row.start + row.value) for row in rows), default=0)
    top = axis_from_zero(largest, level.value if level else None).top
    on_scale = level is not None and level.value <= top
    for row in rows:
        line = box(chart, "row", tag="div")
        box(line, "name", row.label)
        track = box(line, "track")
        low, high = (max(0, end) for end in sorted((row.start, row.start + row.value)))
        box(track, f"bar {row.tone}", left=share(low, top), width=share(high - low, top))
        if level and on_scale:
            box(track, "level", left=share(level.value, top))
        box(line, "value", row.text or format_size(row.value))
    if level:
        _name_level(chart, level, top if on_scale else None)
    return markup(chart)


def _name_level(chart: ET.Element, level: Level, top: int | None) -> None:
    """Add a last row that says what the line across the bars is, under its end; ``top`` None: off the scale."""
    line = box(chart, "row", tag="div")
    box(line, "name")
    track = box(line, "track")
    text = level.text
    if top is None:
        box(track, "level-name", f"{text}: off the scale")
    else:
        at = share(level.value, top)
        box(track, "level-name", text, left=at, transform=f"translateX(-{at})")
    box(line, "value")
