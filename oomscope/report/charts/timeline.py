"""Requested memory by category over the events of a run, stacked, below the line of what is reserved.

The picture is complete without a script; ``timeline.js`` redraws the same paths for the part of the run that is looked
at, from finer bins that the page carries.
"""

from __future__ import annotations

from typing import Any, Final
from xml.etree import ElementTree as ET

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from oomscope.report.charts.html import add_legend, add_plot, box, figure, markup, packed
from oomscope.report.charts.plot import Key, Level, Line, Mark, Plot, axis_from_zero
from oomscope.report.explain import line_text
from oomscope.report.sentences import category_text, count, moment_text
from oomscope.snapshot.explain.curves import Bins
from oomscope.snapshot.explain.explanation import DeviceExplanation
from oomscope.units import format_size

DRAWN: Final = 400
"""Bins drawn without a script."""


def timeline_plot(device: DeviceExplanation, bins: Bins, columns: int) -> Plot:
    """Return the timeline of ``device`` in at most ``columns`` columns: the edges of a stack, the highest first."""
    drawn = bins.coarser(max(1, -(-len(bins) // columns)))
    failed_event = failed_event_of(device)
    level = Level(value=device.available_bytes, label="may use") if device.available_bytes else None
    scale = axis_from_zero(int(drawn.reserved.max(initial=0)), level.value if level else None)
    axis = axis_from_zero(max(scale.top, int(drawn.all_requested.max(initial=0))))
    names = list(drawn.requested)
    edges = np.cumsum(list(drawn.requested.values()), axis=0)
    peak = drawn.peak
    sizes = {name: format_size(int(curve[peak])) for name, curve in drawn.requested.items()}
    return Plot(
        kind="stack",
        title="Requested memory by category over the events",
        width=bins.total,
        axis=axis,
        lines=[
            *(
                Line(points=_steps(edge, drawn), style=f"fill {name}", is_filled=True, is_stepped=True)
                for name, edge in reversed(list(zip(names, edges, strict=True)))
            ),
            Line(points=_steps(drawn.reserved, drawn), style="reserved", is_stepped=True),
        ],
        marks=[Mark(x=(peak + 0.5) * drawn.per_bin, y=int(drawn.all_requested[peak]), style="peak")],
        uprights=[] if failed_event is None else [(failed_event + 0.5, "failed")],
        legend=[
            *(Key(text=category_text(name), style=name, size=sizes[name]) for name in reversed(names)),
            Key(text="reserved", style="line reserved", size=format_size(int(drawn.reserved[peak]))),
        ],
        level=level,
        ends=("event 0", f"event {bins.total - 1:,}"),
        caption=_caption(drawn.per_bin),
    )


def timeline_chart(device: DeviceExplanation, bins: Bins, name: str, *, table: str) -> Markup:
    """Return the timeline as a figure.

    Args:
        device: whose memory it shows.
        bins: the timeline.
        name: id of the element with the finer bins.
        table: id of the table in which a code line is looked up.
    """
    plot = timeline_plot(device, bins, DRAWN)
    chart = figure(plot.kind, plot.title)
    chart.set("data-timeline", name)
    chart.set("data-table", table)
    _controls(chart, failed_event_of(device))
    area = add_plot(box(chart, "frame", tag="div"), plot)
    area.set("data-top", str(plot.axis.top))
    box(chart, "readout soft", plot.caption, tag="p").set("aria-live", "polite")
    box(add_legend(chart, plot.legend), "moment soft", "at the peak")
    return markup(chart)


def failed_event_of(device: DeviceExplanation) -> int | None:
    """Return the index of the failed allocation; None where nothing failed or where it was not recorded."""
    return device.failure.event if device.failure and device.failure.event >= 0 else None


def timeline_data(bins: Bins, *, failed_event: int | None) -> dict[str, Any]:
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
    buttons = [("peak", "Peak"), ("in", "Zoom in"), ("out", "Zoom out"), ("reset", "Whole run")]
    if failed_event is not None:
        buttons.insert(1, ("failure", "Failure"))
    for action, text in buttons:
        button = box(controls, "button", text, tag="button")
        button.set("type", "button")
        button.set("data-do", action)
    box(controls, "hint soft", "drag to zoom, click to hold, arrow keys to step")


def _steps(values: NDArray[np.int64], drawn: Bins) -> list[tuple[float, float]]:
    """Return where each bin begins and its value, and the end of the last one."""
    heights = values.tolist()
    return [*((index * drawn.per_bin, height) for index, height in enumerate(heights)), (drawn.total, heights[-1])]


def _caption(per_bin: int) -> str:
    """Return what a column of the picture is; a script writes here what is pointed at."""
    if per_bin == 1:
        return "Every event is drawn; the line is what was reserved."
    return f"{count(per_bin, 'event')} a column: as it was when most was live, and the most that was reserved."
