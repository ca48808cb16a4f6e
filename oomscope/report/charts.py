"""Charts as inline SVG: small functions from numbers to markup, with no script and nothing to download.

Colours are CSS classes (``report.css`` holds them for light and dark), so that a page prints and prefers what the
reader prefers. Every text passes through ElementTree, which escapes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from markupsafe import Markup

from oomscope.units import GiB, KiB, MiB, TiB, format_size

WIDTH = 880
LABEL_WIDTH = 250
LABEL_LENGTH = 34
VALUE_WIDTH = 130
ROW_HEIGHT = 26
TICKS = 5
AXIS_WIDTH = 86


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One row of a bar chart."""

    label: str
    value: int
    text: str = ""
    """What stands at the end of the bar; the size when empty."""
    tone: str = "accent"
    """CSS class: ``accent``, ``good``, ``bad`` or ``quiet``."""
    start: int = 0
    """Where the bar begins: 0, or the level that a step of a waterfall starts from."""


@dataclass(frozen=True, kw_only=True)
class Level:
    """A reference line across a chart, such as what the process may use."""

    value: int
    label: str


def bars(rows: Sequence[Bar], *, title: str, level: Level | None = None) -> Markup:
    """Return horizontal bars on one scale; a row with a negative value reaches left of its start."""
    top = max([*(max(row.start, row.start + row.value) for row in rows), level.value if level else 0, 1])
    span = WIDTH - LABEL_WIDTH - VALUE_WIDTH
    height = ROW_HEIGHT * len(rows) + (18 if level else 4)
    svg = _svg(height, title)

    def x(value: int) -> float:
        return LABEL_WIDTH + span * max(0, value) / top

    for index, row in enumerate(rows):
        y = index * ROW_HEIGHT
        low, high = sorted((row.start, row.start + row.value))
        label = _clip(row.label, LABEL_LENGTH)
        _text(svg, LABEL_WIDTH - 8, y + 17, label, "label end", hover=row.label if label != row.label else "")
        _rect(svg, x(low), y + 5, max(1.0, x(high) - x(low)), ROW_HEIGHT - 10, style=row.tone)
        _text(svg, x(high) + 6, y + 17, row.text or format_size(row.value), "value")
    if level:
        _line(svg, x(level.value), 0, x(level.value), ROW_HEIGHT * len(rows), style="level")
        _text(svg, x(level.value), height - 4, f"{level.label} {format_size(level.value)}", "level-label end")
    return _markup(svg)


def area(values: Sequence[int], *, title: str, level: Level | None = None, height: int = 220) -> Markup:
    """Return ``values`` over time as a filled curve from zero, with ticks in a round unit."""
    svg = _svg(height + 24, title)
    top = max([*values, level.value if level else 0, 1])
    span = WIDTH - AXIS_WIDTH - 8

    def point(index: int, value: int) -> tuple[float, float]:
        return AXIS_WIDTH + span * index / max(1, len(values) - 1), 8 + (height - 8) * (1 - value / top)

    for tick in ticks(top):
        _, y = point(0, tick)
        _line(svg, AXIS_WIDTH, y, WIDTH - 8, y, style="grid")
        _text(svg, AXIS_WIDTH - 8, y + 4, format_size(tick, digits=1) if tick else "0", "label end")
    curve = " ".join(f"{x:.1f},{y:.1f}" for x, y in (point(index, value) for index, value in enumerate(values)))
    if values:
        right = point(len(values) - 1, 0)[0]
        ET.SubElement(
            svg, "polygon", points=f"{AXIS_WIDTH},{height} {curve} {right:.1f},{height}", attrib=_class("area")
        )
        ET.SubElement(svg, "polyline", points=curve, attrib=_class("curve"))
    if level:
        _, y = point(0, level.value)
        _line(svg, AXIS_WIDTH, y, WIDTH - 8, y, style="level")
        _text(svg, WIDTH - 10, y + 14, f"{level.label} {format_size(level.value)}", "level-label end")
    _text(svg, AXIS_WIDTH, height + 18, "first event", "label")
    _text(svg, WIDTH - 8, height + 18, "last event", "label end")
    return _markup(svg)


def ticks(top: int, wanted: int = TICKS) -> list[int]:
    """Return round values from 0 to ``top``: 1, 2 or 5 times a power of ten of the unit that ``top`` is shown in."""
    unit = next((unit for unit in (TiB, GiB, MiB, KiB) if top >= unit), 1)
    rough = top / unit / wanted
    power = 10.0 ** (len(str(int(rough))) - 1) if rough >= 1 else 0.1
    step = next((power * factor for factor in (1, 2, 5, 10) if power * factor >= rough), power * 10)
    size = max(1, round(step * unit))
    return list(range(0, top + 1, size))


def _svg(height: float, title: str) -> ET.Element:
    svg = ET.Element("svg", viewBox=f"0 0 {WIDTH} {height:g}", role="img", attrib={"aria-label": title})
    ET.SubElement(svg, "title").text = title
    return svg


def _class(name: str) -> dict[str, str]:
    return {"class": name}


def _text(svg: ET.Element, x: float, y: float, text: str, style: str, *, hover: str = "") -> None:
    element = ET.SubElement(svg, "text", x=f"{x:.1f}", y=f"{y:.1f}", attrib=_class(style))
    element.text = text
    if hover:
        ET.SubElement(element, "title").text = hover


def _rect(svg: ET.Element, x: float, y: float, width: float, height: float, *, style: str) -> None:
    box = {"x": f"{x:.1f}", "y": f"{y:.1f}", "width": f"{width:.1f}", "height": f"{height:.1f}", "rx": "2"}
    ET.SubElement(svg, "rect", attrib={**box, **_class(style)})


def _line(svg: ET.Element, x1: float, y1: float, x2: float, y2: float, *, style: str) -> None:
    ends = {"x1": f"{x1:.1f}", "y1": f"{y1:.1f}", "x2": f"{x2:.1f}", "y2": f"{y2:.1f}"}
    ET.SubElement(svg, "line", attrib={**ends, **_class(style)})


def _clip(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _markup(svg: ET.Element) -> Markup:
    return Markup(ET.tostring(svg, encoding="unicode"))  # noqa: S704 - ElementTree has escaped every text
