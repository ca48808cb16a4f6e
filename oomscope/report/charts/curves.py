"""Requested or reserved bytes over a run: one filled curve, or several over one axis with the peak of each marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from oomscope.report.charts.axis import axis_from_zero
from oomscope.report.charts.html import html_chart
from oomscope.report.charts.plot import Key, Level, Line, Mark, Plot, Tick
from oomscope.units import format_size

ENDS = ("first event", "last event")


@dataclass(frozen=True, kw_only=True)
class Series:
    """One of the curves."""

    label: str
    values: Sequence[int]
    style: str
    """CSS class: ``first`` or ``second``, with ``thin`` for what is beside it."""
    places: Sequence[float] = ()
    """Where on the axis each value lies, from 0 to 1; evenly over all of it unless given."""

    @property
    def points(self) -> list[tuple[float, float]]:
        """Place and value of each point."""
        last = max(1, len(self.values) - 1)
        places = self.places or [index / last for index in range(len(self.values))]
        return list(zip(places, self.values, strict=True))


def area(values: Sequence[int], *, title: str, level: Level | None = None) -> Markup:
    """Return ``values`` over the events as a filled curve from zero."""
    points = Series(label="", values=values, style="").points
    lines = (Line(points=points, style="fill", is_filled=True), Line(points=points, style="curve"))
    axis = axis_from_zero(max(values, default=0), level.value if level else None)
    return html_chart(Plot(kind="area", title=title, width=1, axis=axis, lines=lines, level=level, ends=ENDS))


def curves(
    series: Sequence[Series],
    *,
    title: str,
    stretches: Sequence[tuple[str, float]] = (),
    level: Level | None = None,
) -> Markup:
    """Return the curves, from zero.

    Args:
        series: what is drawn.
        title: what it shows.
        stretches: names of parts of the axis, and where each begins, from 0 to 1; empty for an axis of events.
        level: a line across the chart.
    """
    axis = axis_from_zero(
        max((max(each.values, default=0) for each in series), default=0), level.value if level else None
    )
    marks, legend = [], []
    for each in series:
        peak = max(each.values, default=0)
        legend.append(Key(text=f"{each.label}, peak {format_size(peak)}", style=each.style))
        if each.values:
            x, y = each.points[each.values.index(peak)]
            marks.append(Mark(x=x, y=y, style=f"peak {each.style}"))
    ends = [*(start for _, start in stretches[1:]), 1.0]
    plot = Plot(
        kind="area",
        title=title,
        width=1,
        axis=axis,
        lines=[Line(points=each.points, style=f"curve {each.style}") for each in series],
        marks=marks,
        uprights=[(start, "stretch") for _, start in stretches],
        legend=legend,
        level=level,
        ends=None if stretches else ENDS,
        ticks=[
            Tick(x=start, text=name, width=end - start)
            for (name, start), end in zip(stretches, ends, strict=bool(stretches))
        ],
    )
    return html_chart(plot)
