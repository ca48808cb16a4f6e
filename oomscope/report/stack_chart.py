"""Requested memory by category over the events of a run, stacked, below the line of what is reserved.

The picture is complete without a script; with one, ``timeline.js`` redraws the same paths for the part of the run that
is looked at, from finer bins that the page carries.
"""

from __future__ import annotations

from typing import Any, Final
from xml.etree import ElementTree as ET

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from oomscope.report.area import SIDE, ticks
from oomscope.report.explain_words import category_text, line_text
from oomscope.report.markup import Level, box, figure, markup, scale, share
from oomscope.report.packed import packed
from oomscope.report.words import count, moment_text
from oomscope.snapshot.drawing.bins import Bins
from oomscope.units import format_size

DRAWN: Final = 400
"""Bins drawn without a script."""


def stack_chart(bins: Bins, name: str, *, table: str, level: Level | None, failed_event: int | None) -> Markup:
    """Return the timeline as a figure.

    Args:
        bins: what is drawn.
        name: id of the element with the finer bins.
        table: id of the table in which a code line is looked up.
        level: what the process could hold.
        failed_event: index of the failed allocation.
    """
    drawn = bins.coarser(max(1, -(-len(bins) // DRAWN)))
    chart = figure("stack", "Requested memory by category over the events")
    chart.set("data-timeline", name)
    chart.set("data-table", table)
    _controls(chart, failed_event)
    frame = box(chart, "frame", tag="div")
    top, on_scale = scale(int(drawn.reserved.max(initial=0)), level)
    top = max(top, int(drawn.all_requested.max(initial=0)))
    plot = box(frame, "plot", tag="div")
    plot.set("data-top", str(top))
    grid = box(plot, "grids", tag="div")
    for tick in ticks(top):
        line = box(grid, "grid", bottom=share(tick, top))
        box(line, "tick", format_size(tick, digits=1) if tick else "0")
    _paths(plot, drawn, top)
    if level and on_scale:
        line = box(plot, "level", bottom=share(level.value, top))
        line.set("data-bytes", str(level.value))
        box(line, "level-name", f"{level.label} {format_size(level.value)}")
    peak = drawn.peak
    box(
        plot,
        "peak",
        left=share((peak + 0.5) * drawn.per_bin, bins.total),
        bottom=share(int(drawn.all_requested[peak]), top),
    )
    if failed_event is not None:
        box(plot, "failed", left=share(failed_event + 0.5, bins.total))
    ends = box(frame, "ends", tag="div")
    box(ends, "end", "event 0")
    if level and not on_scale:
        box(ends, "end", f"{level.label} {format_size(level.value)}: off the scale")
    box(ends, "end", f"event {bins.total - 1:,}")
    _readout(chart, drawn)
    _legend(chart, drawn)
    return markup(chart)


def stack_data(bins: Bins, *, failed_event: int | None) -> dict[str, Any]:
    """Return what the script draws and says, as JSON values."""
    columns = [bins.event, bins.time_us, bins.site, bins.moment, bins.reserved, *bins.requested.values()]
    return {
        "perBin": bins.per_bin,
        "total": bins.total,
        "categories": [category_text(name) for name in bins.requested],
        "sites": [line_text(site) for site in bins.sites],
        "moments": [
            moment_text(iteration, phase) if phase or iteration >= 0 else "" for iteration, phase in bins.moments
        ],
        "failed": failed_event,
        **packed(columns),
    }


def _controls(chart: ET.Element, failed_event: int | None) -> None:
    """Add the buttons, which stay hidden where no script runs."""
    controls = box(chart, "controls", tag="div")
    controls.set("hidden", "")
    buttons = [("peak", "Peak"), ("in", "Zoom in"), ("out", "Zoom out"), ("reset", "Whole run"), ("magnify", "Magnify")]
    if failed_event is not None:
        buttons.insert(1, ("failure", "Failure"))
    for action, text in buttons:
        button = box(controls, "button", text, tag="button")
        button.set("type", "button")
        button.set("data-do", action)
    box(controls, "hint soft", "drag to zoom, click to hold, arrow keys to step")


def _paths(plot: ET.Element, drawn: Bins, top: int) -> None:
    """Draw what lies under each category's upper edge, the highest first, so that lower ones cover it."""
    svg = ET.SubElement(plot, "svg", viewBox=f"0 0 {SIDE} {SIDE}", preserveAspectRatio="none", role="presentation")
    edges = np.cumsum(list(drawn.requested.values()), axis=0)
    for name, edge in reversed(list(zip(drawn.requested, edges, strict=True))):
        path = f"M0,{SIDE}{_steps(edge, drawn, top)}V{SIDE}Z"
        ET.SubElement(svg, "path", {"class": f"fill {name}", "d": path})
    first, *_ = _heights(drawn.reserved, top)
    ET.SubElement(svg, "path", {"class": "reserved", "d": f"M0,{first}{_steps(drawn.reserved, drawn, top)}"})


def _steps(values: NDArray[np.int64], drawn: Bins, top: int) -> str:
    """Return one level step for each bin; equal neighbours are one."""
    pieces: list[str] = []
    last = ""
    rights = np.minimum((np.arange(len(values)) + 1) * drawn.per_bin, drawn.total) * SIDE / drawn.total
    for right, height in zip(rights.tolist(), _heights(values, top), strict=True):
        if height == last:
            pieces[-1] = f"H{right:.1f}"
        else:
            pieces += [f"V{height}", f"H{right:.1f}"]
        last = height
    return "".join(pieces)


def _heights(values: NDArray[np.int64], top: int) -> list[str]:
    return [f"{each:.1f}" for each in (SIDE * (1 - values / top)).tolist()]


def _readout(chart: ET.Element, drawn: Bins) -> None:
    """Say what a column of the picture is; a script says here what is pointed at."""
    line = box(chart, "readout soft", tag="p")
    line.set("aria-live", "polite")
    line.text = (
        "Every event is drawn; the line is what was reserved."
        if drawn.per_bin == 1
        else f"{count(drawn.per_bin, 'event')} a column: as it was when most was live, and the most that was reserved."
    )


def _legend(chart: ET.Element, drawn: Bins) -> None:
    """Name the colours in the order of the stack, with what each holds at the peak."""
    legend = box(chart, "legend", tag="div")
    for name, curve in reversed(drawn.requested.items()):
        key = box(legend, f"key {name}", category_text(name) + " ")
        box(key, "size", format_size(int(curve[drawn.peak])))
    key = box(legend, "key line", "reserved ")
    box(key, "size", format_size(int(drawn.reserved[drawn.peak])))
    box(legend, "moment soft", "at the peak")
