"""Requested or reserved bytes over a run: one filled curve, or several over one axis with the peak of each marked.

The last good and the first bad run over one axis, so that what came between them is seen. Every iteration is as wide as
the other run's, with its events spread evenly; an iteration that a failure cut off ends where the same number of events
ends in the other run. Runs that do not know their iterations are laid over each other by the share of their events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from oomscope.probe.result import ProbeResult, RunCurves
from oomscope.report.charts.html import html_chart
from oomscope.report.charts.plot import Key, Level, Line, Mark, Plot, Tick, axis_from_zero
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


def overlaid(good: ProbeResult, bad: ProbeResult) -> Markup | None:
    """Return both runs' live (solid) and reserved (thin) bytes; None where one has no curves."""
    if good.curves is None or bad.curves is None:
        return None
    names = iteration_names(good.curves, bad.curves)
    runs = (
        ("last good", "first", good.curves, places_of(good, bad, names)),
        ("first bad", "second", bad.curves, places_of(bad, good, names)),
    )
    series = [
        Series(label=f"{label}, {quantity}", values=values, style=f"{style}{thin}", places=places)
        for label, style, run, places in runs
        for quantity, values, thin in (("live", run.requested_bytes, ""), ("reserved", run.reserved_bytes, " thin"))
    ]
    available = bad.available_bytes
    return curves(
        series,
        title="Live and reserved bytes of the last good and the first bad run",
        stretches=[(_name(each), index / len(names)) for index, each in enumerate(names)] if names else (),
        level=Level(value=available, label="may use") if available else None,
    )


def iteration_names(good: RunCurves, bad: RunCurves) -> list[int]:
    """Return the iterations that either run has; none where one of them knows only the time before the first."""
    if max(good.iterations) < 0 or max(bad.iterations) < 0:
        return []
    return sorted({*good.iterations, *bad.iterations})


def places_of(run: ProbeResult, other: ProbeResult, names: Sequence[int]) -> list[float]:
    """Return where on the axis, from 0 to 1, each point of ``run`` lies."""
    if run.curves is None or other.curves is None:
        return []
    points = run.curves.iterations
    if not names:
        return [index / max(1, len(points) - 1) for index in range(len(points))]
    own, its = Counter(points), Counter(other.curves.iterations)
    each, per_other = (side.events or 1 for side in (run, other))
    cut = points[-1] if run.outcome == "oom" else None
    places, seen = [], Counter[int]()
    for iteration in points:
        wide = 1.0
        if iteration == cut and its[iteration]:
            its_events = its[iteration] * per_other / len(other.curves.iterations)
            wide = min(1.0, own[iteration] * each / len(points) / its_events)
        places.append((names.index(iteration) + wide * seen[iteration] / own[iteration]) / len(names))
        seen[iteration] += 1
    return places


def _name(iteration: int) -> str:
    return "setup" if iteration < 0 else f"iteration {iteration}"
