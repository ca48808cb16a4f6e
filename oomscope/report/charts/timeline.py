"""Requested memory by category over a run, stacked, below the line of what is reserved, with a mark for each incident.

The picture is complete without a script; ``timeline.js`` redraws the same paths for the part of the run that is looked
at, from finer bins that the page carries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final
from xml.etree import ElementTree as ET

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from oomscope.report.charts.html import (
    SIDE,
    add_button,
    add_controls,
    add_legend,
    add_plot,
    box,
    figure,
    markup,
    packed,
    share,
)
from oomscope.report.charts.plot import Key, Line, Mark, Plot, Tick, axis_from_zero, round_step
from oomscope.report.sentences import category_text, count, moment_text, site_text
from oomscope.snapshot.explain.curves import Bins
from oomscope.snapshot.explain.drawing import Drawing
from oomscope.snapshot.replay.releases import Incident
from oomscope.snapshot.trace import Moment
from oomscope.units import format_size

WANTED: Final = 6
"""Approximate number of ticks."""
NAMED_FROM: Final = 0.06
"""Share of the axis from which a part of a band is named."""
PHASES: Final = frozenset({"init", "forward", "loss", "backward", "optimizer"})
"""Phases with a colour of their own."""
UNITS: Final = ((1_000_000, "s"), (1000, "ms"), (1, "µs"))


@dataclass(frozen=True, kw_only=True)
class Band:
    """What holds at each moment, such as the phase: a text and a CSS class each, both empty where it is unknown."""

    name: str
    of_moment: tuple[tuple[str, str], ...]


def bands_of(bins: Bins) -> list[Band]:
    """Return the bands that say something."""
    found = [
        Band(name=name, of_moment=tuple(map(told, bins.moments)))
        for name, told in (
            ("iteration", lambda each: _numbered(each.iteration)),
            ("microbatch", lambda each: _numbered(each.microbatch)),
            ("phase", _phase),
        )
    ]
    return [band for band in found if any(text for text, _ in band.of_moment)]


def _numbered(number: int) -> tuple[str, str]:
    return ("", "") if number < 0 else (str(number), "odd" if number % 2 else "even")


def _phase(moment: Moment) -> tuple[str, str]:
    return moment.phase, f"phase-{moment.phase if moment.phase in PHASES else 'other'}" if moment.phase else ""


def add_bands(parent: ET.Element, bins: Bins, drawn: Bins) -> None:
    """Draw the bands of ``bins`` in the columns of ``drawn``; a script draws them for another part of the run."""
    bands = bands_of(bins)
    if not bands:
        return
    element = box(parent, "bands", tag="div")
    edges = drawn.edges.tolist()
    for band in bands:
        row = box(element, "band-row", tag="div")
        box(row, "band-name", band.name)
        size = {"viewBox": f"0 0 {SIDE} 1", "preserveAspectRatio": "none", "role": "presentation"}
        svg = ET.SubElement(row, "svg", size)
        texts = [band.of_moment[each] for each in drawn.moment.tolist()]
        paths: dict[str, list[str]] = {}
        for (text, style), start, end in _runs(texts, edges):
            left, right = start / edges[-1], end / edges[-1]
            paths.setdefault(style, []).append(f"M{SIDE * left:.1f},0H{SIDE * right:.1f}V1H{SIDE * left:.1f}z")
            if right - left >= NAMED_FROM:
                box(row, "band-text", text, left=share(left, 1), width=share(right - left, 1))
        for style, pieces in paths.items():
            ET.SubElement(svg, "path", {"class": style, "d": "".join(pieces)})


def _runs(values: Sequence[tuple[str, str]], edges: Sequence[int]) -> Iterator[tuple[tuple[str, str], int, int]]:
    """Yield each run of equal known values, and from where to where it reaches."""
    at = 0
    for value, group in groupby(values):
        length = len(list(group))
        if value[1]:
            yield value, edges[at], edges[at + length]
        at += length


def axis_ticks(bins: Bins) -> list[Tick]:
    """Return ticks of the axis, which begins at zero: seconds since the first event, or events."""
    end = int(bins.edges[-1])
    unit, name = next((each for each in UNITS if end >= each[0]), UNITS[-1]) if bins.is_by_time else (1, "")
    step = max(1, round(round_step(end / unit / WANTED) * unit)) if end else 1
    text: Callable[[int], str] = lambda at: f"{at / unit:g} {name}" if bins.is_by_time else f"{at:,}"  # noqa: E731
    return [Tick(x=at, text=text(at)) for at in range(0, max(1, end), step)]


def axis_data(bins: Bins) -> dict[str, Any]:
    """Return bands and axis as JSON values for the script."""
    return {
        "timed": bins.is_timed,
        "byTime": bins.is_by_time,
        "bands": [{"name": band.name, "of": band.of_moment} for band in bands_of(bins)],
    }


DRAWN: Final = 400
"""Bins drawn without a script."""
MOST_MARKS: Final = 100
"""Incidents marked in a picture: the largest of each kind."""
MOST_TOLD: Final = 2000
"""Incidents that a script knows: the largest of each kind."""
INCIDENTS: Final = {
    "oom": ("out-of-memory error", "out-of-memory errors", "out of memory asking for {}"),
    "retry": ("retry", "retries", "retry: the driver refused memory, {} of cached segments were given back for it"),
    "flush": ("cache flush", "cache flushes", "cache flush: the program gave {} back to the driver"),
}


def timeline_plot(drawing: Drawing, columns: int, *, available: int | None = None) -> Plot:
    """Return the timeline in at most ``columns`` columns: the edges of a stack, the highest first."""
    bins = drawing.bins
    drawn = bins.coarser(max(1, -(-len(bins) // columns)))
    scale = axis_from_zero(int(drawn.reserved.max(initial=0)), available)
    axis = axis_from_zero(max(scale.top, int(drawn.all_requested.max(initial=0))))
    names = list(drawn.requested)
    edges = np.cumsum(list(drawn.requested.values()), axis=0)
    peak = drawn.peak
    sizes = {name: format_size(int(curve[peak])) for name, curve in drawn.requested.items()}
    return Plot(
        kind="stack",
        title=f"Requested memory by category over {'time' if bins.is_by_time else 'the events'}",
        width=float(drawn.edges[-1]),
        axis=axis,
        lines=[
            *(
                Line(points=_steps(edge, drawn), style=f"fill {name}", is_filled=True, is_stepped=True)
                for name, edge in reversed(list(zip(names, edges, strict=True)))
            ),
            Line(points=_steps(drawn.reserved, drawn), style="reserved", is_stepped=True),
        ],
        marks=[
            *(
                Mark(x=drawn.place_of(each.event), y=axis.top, style=f"incident {each.kind}", title=incident_text(each))
                for each in _largest(drawing.incidents, MOST_MARKS)
            ),
            Mark(x=drawn.place_of(int(drawn.event[peak])), y=int(drawn.all_requested[peak]), style="peak"),
        ],
        uprights=[] if drawing.failed_event is None else [(drawn.place_of(drawing.failed_event), "failed")],
        legend=[
            *(Key(text=category_text(name), style=name, size=sizes[name]) for name in reversed(names)),
            Key(text="reserved", style="line reserved", size=format_size(int(drawn.reserved[peak]))),
            *_incident_keys(drawing.incidents),
        ],
        level=available or None,
        ticks=axis_ticks(drawn),
        caption=_caption(drawn.per_bin),
    )


def timeline_chart(drawing: Drawing, name: str, *, table: str, available: int | None = None) -> Markup:
    """Return the timeline; ``name`` and ``table`` are ids, of the finer bins and of the table of code lines."""
    plot = timeline_plot(drawing, DRAWN, available=available)
    chart = figure(plot.kind, plot.title, timeline=name, table=table)
    _controls(chart, drawing)
    frame = box(chart, "frame", tag="div")
    area = add_plot(frame, plot)
    area.set("data-top", str(plot.axis.top))
    add_bands(frame, drawing.bins, drawing.bins.coarser(max(1, -(-len(drawing.bins) // DRAWN))))
    box(chart, "readout soft", plot.caption, tag="p").set("aria-live", "polite")
    box(add_legend(chart, plot.legend), "moment soft", "at the peak")
    return markup(chart)


def timeline_data(drawing: Drawing, bins: Bins) -> dict[str, Any]:
    """Return the data of the script, as JSON values; ``bins`` are those of the drawing, or coarser ones."""
    columns = [bins.event, bins.time_us, bins.site, bins.moment, bins.reserved, *bins.requested.values()]
    return {
        "perBin": bins.per_bin,
        "total": bins.total,
        "categories": [category_text(name) for name in bins.requested],
        "sites": [site_text(site) for site in bins.sites],
        "moments": [
            moment_text(each.iteration, each.phase, each.microbatch) if each.phase or each.iteration >= 0 else ""
            for each in bins.moments
        ],
        "failed": drawing.failed_event,
        "shown": drawing.plan.event if drawing.plan else None,
        "incidents": [[each.event, each.kind, incident_text(each)] for each in _largest(drawing.incidents, MOST_TOLD)],
        **axis_data(bins),
        **packed(columns),
    }


def incident_text(incident: Incident) -> str:
    """Return what happened, as words."""
    return INCIDENTS[incident.kind][2].format(format_size(incident.bytes))


def _incident_keys(incidents: Sequence[Incident]) -> list[Key]:
    kinds: Counter[str] = Counter(each.kind for each in incidents)
    return [
        Key(text=count(kinds[kind], one, many), style=f"incident {kind}")
        for kind, (one, many, _) in INCIDENTS.items()
        if kinds[kind]
    ]


def _largest(incidents: Sequence[Incident], most: int) -> list[Incident]:
    """Return at most ``most`` of each kind, in order."""
    found = [
        each
        for kind in INCIDENTS
        for each in sorted((each for each in incidents if each.kind == kind), key=lambda one: -one.bytes)[:most]
    ]
    return sorted(found)


def _controls(chart: ET.Element, drawing: Drawing) -> None:
    """Add buttons and the search."""
    controls = add_controls(chart)
    buttons = [("peak", "Peak"), ("in", "Zoom in"), ("out", "Zoom out"), ("reset", "Whole run")]
    if drawing.failed_event is not None:
        buttons.insert(1, ("failure", "Failure"))
    if drawing.incidents:
        buttons.append(("incident", "Next mark"))
    if drawing.bins.is_timed:
        buttons.append(("axis", "By event" if drawing.bins.is_by_time else "By time"))
    for action, text in buttons:
        add_button(controls, text, do=action)
    search = {"type": "search", "class": "seek", "placeholder": "Search lines and phases", "aria-label": "Search"}
    ET.SubElement(controls, "input", search)
    box(controls, "found soft", tag="output")
    box(controls, "hint soft", "drag to zoom, click to hold, arrow keys to step, / to search")


def _steps(values: NDArray[np.int64], drawn: Bins) -> list[tuple[float, float]]:
    """Return where each bin begins and its value, and the end of the last one."""
    heights = values.tolist()
    return list(zip(drawn.edges.tolist(), [*heights, heights[-1]], strict=True))


def _caption(per_bin: int) -> str:
    """Return what a column of the picture is; a script writes here what is pointed at."""
    if per_bin == 1:
        return "Every event is drawn; the line is what was reserved."
    return f"{count(per_bin, 'event')} a column: as it was when most was live, and the most that was reserved."
