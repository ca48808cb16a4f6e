"""Several curves over one axis, each with its peak marked and named, so that runs are compared at a glance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from xml.etree import ElementTree as ET

from markupsafe import Markup

from oomscope.report.area import SIDE, ticks
from oomscope.report.markup import Level, box, figure, markup, scale, share
from oomscope.units import format_size

NARROW_NAMES: Final = 4
"""How many parts of the axis are named on a narrow screen, where the names of all would not be read."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """One of the curves."""

    label: str
    values: Sequence[int]
    style: str
    """CSS class: ``first`` or ``second``, with ``thin`` for what is beside it."""
    places: Sequence[float] = ()
    """Where on the axis each value lies, from 0 to 1; evenly over all of it unless given."""

    def place(self, index: int) -> float:
        """Return where the value at ``index`` lies."""
        return self.places[index] if self.places else index / max(1, len(self.values) - 1)


def curves(
    series: Sequence[Series],
    *,
    title: str,
    stretches: Sequence[tuple[str, float]] = (),
    level: Level | None = None,
) -> Markup:
    """Return the curves, from zero, with ticks in a round unit.

    Args:
        series: what is drawn.
        title: what it shows.
        stretches: names of parts of the axis, and where each begins, from 0 to 1; empty for an axis of events.
        level: a line across the chart.
    """
    chart = figure("area", title)
    top, on_scale = scale(max((value for each in series for value in each.values), default=0), level)
    legend = box(chart, "legend", tag="div")
    plot = box(chart, "plot", tag="div")
    for tick in ticks(top):
        line = box(plot, "grid", bottom=share(tick, top))
        box(line, "tick", format_size(tick, digits=1) if tick else "0")
    for _, start in stretches:
        box(plot, "stretch", left=share(start, 1))
    if level and on_scale:
        line = box(plot, "level", bottom=share(level.value, top))
        box(line, "level-name", f"{level.label} {format_size(level.value)}")
    svg = ET.SubElement(plot, "svg", viewBox=f"0 0 {SIDE} {SIDE}", preserveAspectRatio="none", role="presentation")
    for each in series:
        points = " ".join(
            f"{SIDE * each.place(index):.1f},{SIDE * (1 - value / top):.1f}" for index, value in enumerate(each.values)
        )
        ET.SubElement(svg, "polyline", {"class": f"curve {each.style}", "points": points})
        peak = max(each.values, default=0)
        box(legend, f"key {each.style}", f"{each.label}, peak {format_size(peak)}")
        if each.values:
            box(plot, f"peak {each.style}", left=share(each.place(each.values.index(peak)), 1), bottom=share(peak, top))
    if level and not on_scale:
        box(legend, "off", f"{level.label} {format_size(level.value)}: off the scale")
    _name_axis(chart, stretches)
    return markup(chart)


def _name_axis(chart: ET.Element, stretches: Sequence[tuple[str, float]]) -> None:
    """Write below the plot what its parts are."""
    if not stretches:
        ends = box(chart, "ends", tag="div")
        box(ends, "end", "first event")
        box(ends, "end", "last event")
        return
    parts = box(chart, "stretches", tag="div")
    starts = [start for _, start in stretches]
    every = -(-len(stretches) // NARROW_NAMES)
    for index, ((name, start), end) in enumerate(zip(stretches, [*starts[1:], 1.0], strict=True)):
        box(parts, "end minor" if index % every else "end", name, left=share(start, 1), width=share(end - start, 1))
