"""Draws a plot into a page, in per cent of its width, so that it is read in any window, on paper and without a script.

:func:`packed` makes columns of whole numbers small enough to stand in a page: differences, as variable-length bytes,
deflated. The page's script unpacks them with the browser's own ``DecompressionStream``.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Final
from xml.etree import ElementTree as ET

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from oomscope.printable import printable
from oomscope.report.charts.plot import Key, Line, Mark, Plot


def box(parent: ET.Element, name: str, text: str = "", tag: str = "span", **style: str) -> ET.Element:
    """Add an element with the CSS class ``name`` and the given styles (``_`` for ``-``)."""
    attributes = {"class": name}
    if style:
        attributes["style"] = ";".join(f"{key.replace('_', '-')}:{value}" for key, value in style.items())
    element = ET.SubElement(parent, tag, attributes)
    element.text = printable(text)
    return element


def figure(name: str, title: str, **data: str) -> ET.Element:
    """Return an empty chart of the CSS class ``name``; ``title`` is what it is called where it cannot be seen."""
    return ET.Element("figure", {"class": name, "aria-label": title, **_data(data)})


def _data(values: dict[str, str]) -> dict[str, str]:
    return {f"data-{key}": value for key, value in values.items()}


def add_controls(chart: ET.Element) -> ET.Element:
    """Add the box of what a script reacts to, which stays hidden where no script runs."""
    controls = box(chart, "controls", tag="div")
    controls.set("hidden", "")
    return controls


def add_button(controls: ET.Element, text: str, name: str = "button", **data: str) -> None:
    """Add a button of the CSS class ``name`` with ``data`` attributes."""
    box(controls, name, text, tag="button").attrib |= {"type": "button", **_data(data)}


def share(part: float, whole: float) -> str:
    """Return ``part`` of ``whole`` as CSS says it: ``12.34%``."""
    return f"{100 * part / whole:.2f}%"


def embedded(document: dict[str, Any]) -> Markup:
    """Return JSON for a script element, which nothing in it can end; texts are without control characters."""
    text = json.dumps(_harmless(document), separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))  # noqa: S704 - no tag can begin


def _harmless(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {key: _harmless(each) for key, each in value.items()}
    return [_harmless(each) for each in value] if isinstance(value, list | tuple) else value


def markup(element: ET.Element) -> Markup:
    """Return an element as it stands in a page."""
    text = ET.tostring(element, encoding="unicode", short_empty_elements=False)
    return Markup(text.replace("></input>", ">"))  # noqa: S704 - every text is escaped


BITS = 7
"""Bits of a number stored per byte (LEB128), lowest first; the eighth says that more follow."""


def packed(columns: Sequence[NDArray[np.int64]]) -> dict[str, Any]:
    """Return equally long columns as JSON values; numbers are below 2^53, which is what JavaScript counts to."""
    data = b"".join(_varints(_zigzag(np.diff(column, prepend=0))) for column in columns)
    return {
        "columns": len(columns),
        "rows": len(columns[0]) if columns else 0,
        "data": base64.b64encode(zlib.compress(data, 9)).decode(),
    }


def _zigzag(values: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return 0, 1, 2, 3, … for 0, -1, 1, -2 and so on."""
    return ((values << 1) ^ (values >> 63)).astype(np.uint64)


def _varints(values: NDArray[np.uint64]) -> bytes:
    """Return each number in as few bytes as hold it."""
    length = np.ones(len(values), dtype=np.int64)
    for more in range(1, 10):
        length += values >= np.uint64(1 << (BITS * more))
    end = np.cumsum(length)
    out = np.zeros(int(end[-1]) if len(end) else 0, dtype=np.uint8)
    for index in range(int(length.max(initial=0))):
        own = length > index
        piece = (values[own] >> np.uint64(BITS * index)) & np.uint64(127)
        marks = (length[own] > index + 1).astype(np.uint64) << np.uint64(BITS)
        out[(end - length)[own] + index] = piece | marks
    return out.tobytes()


SIDE: Final = 1000
"""Width and height of the lines in their own units."""
NARROW_NAMES: Final = 4
"""Parts of the axis that are named on a narrow screen, which has no room for all names."""
NARROW_LETTERS: Final = 40
"""Letters of the names of points on a narrow screen."""
LATE: Final = 0.8
"""Share of the x axis from which a mark's name stands before it, so that it is not cut off."""


def html_chart(plot: Plot, **data: str) -> Markup:
    """Return ``plot`` as a figure with ``data`` attributes: the legend, the plot, what stands below it."""
    chart = figure(plot.kind, plot.title, **data)
    if plot.legend:
        add_legend(chart, plot.legend)
    add_plot(box(chart, "frame", tag="div"), plot)
    if plot.caption:
        box(chart, "soft", plot.caption, tag="figcaption")
    return markup(chart)


def add_plot(parent: ET.Element, plot: Plot) -> ET.Element:
    """Draw lines and marks of ``plot`` and its axes into ``parent``, and return the element of the plot itself."""
    area = box(parent, "plot", tag="div")
    grids = box(area, "grids", tag="div")
    for tick, name in zip(plot.axis.ticks, plot.axis.names, strict=True):
        box(box(grids, "grid", bottom=share(plot.axis.share(tick), 1)), "tick", name)
    svg = ET.SubElement(area, "svg", {"class": "lines", "viewBox": f"0 0 {SIDE} {SIDE}", "role": "presentation"})
    svg.set("preserveAspectRatio", "none")
    for each in plot.lines:
        if each.points:
            ET.SubElement(svg, "path", {"class": each.style, "d": "".join(_path(each, plot))})
    for x, style in plot.uprights:
        box(area, style, left=share(plot.across(x), 1))
    if plot.level and plot.is_level_drawn:
        line = box(area, "level", bottom=share(plot.axis.share(plot.level), 1))
        line.set("data-bytes", str(plot.level))
        box(line, "level-name", plot.level_text)
    for mark in plot.marks:
        _add_mark(area, mark, plot)
    _add_names(parent, plot)
    return area


def add_legend(parent: ET.Element, keys: Sequence[Key]) -> ET.Element:
    """Name the colours and marks."""
    legend = box(parent, "legend", tag="div")
    for key in keys:
        entry = box(legend, f"key {key.style}", f"{key.text} " if key.size else key.text)
        if key.size:
            box(entry, "size", key.size)
    return legend


def _path(line: Line, plot: Plot) -> Iterator[str]:
    """Yield the commands of an SVG path; equal neighbours of a stepped line are one step."""
    places = [(f"{SIDE * plot.across(x):.1f}", f"{SIDE * (1 - plot.axis.share(y)):.1f}") for x, y in line.points]
    (first, height), *others = places
    yield f"M{first},{SIDE}V{height}" if line.is_filled and not line.floor else f"M{first},{height}"
    if line.is_stepped:
        for index, (x, y) in enumerate(others):
            if y != height:
                yield f"H{x}V{y}"
                height = y
            elif index == len(others) - 1:
                yield f"H{x}"
    else:
        yield from (f"L{x},{y}" for x, y in others)
    if line.floor:
        floor = [f"{SIDE * (1 - plot.axis.share(y)):.1f}" for y in line.floor]
        yield from (f"L{x},{y}" for (x, _), y in zip(reversed(places), reversed(floor), strict=True))
        yield "Z"
    elif line.is_filled:
        yield f"V{SIDE}Z"


def _add_mark(area: ET.Element, mark: Mark, plot: Plot) -> None:
    dot = box(area, mark.style, left=share(plot.across(mark.x), 1), bottom=share(plot.axis.share(mark.y), 1))
    if mark.title:
        dot.set("title", printable(mark.title))
    if mark.name:
        box(dot, "dot-name before" if plot.across(mark.x) > LATE else "dot-name", mark.name)


def _add_names(parent: ET.Element, plot: Plot) -> None:
    """Write below the plot what its ends, parts or points are."""
    if plot.ends:
        ends = box(parent, "ends", tag="div")
        box(ends, "end", plot.ends[0])
        if plot.level and not plot.is_level_drawn:
            box(ends, "end", plot.level_text)
        box(ends, "end", plot.ends[1])
    if not plot.ticks:
        return
    names = box(parent, "stretches", tag="div")
    letters = max(len(tick.text) for tick in plot.ticks)
    most = NARROW_NAMES if plot.ticks[0].width else max(2, NARROW_LETTERS // letters)
    every = -(-len(plot.ticks) // most)
    for index, tick in enumerate(plot.ticks):
        minor = " minor" if index % every and tick is not plot.ticks[-1] else ""
        left = share(plot.across(tick.x), 1)
        if tick.width:
            box(names, f"end{minor}", tick.text, left=left, width=share(plot.across(tick.width), 1))
        else:
            end = " first" if index == 0 else " last" if tick is plot.ticks[-1] else minor
            box(names, f"point{end}", tick.text, left=left)
