"""Requested or reserved bytes of one or several runs over one axis, the peak of each marked.

The last good and the first bad run of a search are laid over each other by iteration, so that what came between them is
seen. Within an iteration their events stand side by side, so that one that a failure cut off ends early.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from oomscope.probe.result import ProbeResult
from oomscope.report.charts.html import html_chart
from oomscope.report.charts.plot import Key, Level, Line, Mark, Plot, Tick, axis_from_zero
from oomscope.units import format_size


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


def curves(
    series: Sequence[Series],
    *,
    title: str,
    stretches: Sequence[tuple[str, float]] = (),
    available: int | None = None,
) -> Markup:
    """Return the curves, from zero.

    Args:
        series: what is drawn.
        title: what it shows.
        stretches: names of parts of the axis, and where each begins, from 0 to 1; empty for an axis of events.
        available: what the process may use, as a line across the chart.
    """
    level = Level(value=available, label="may use") if available else None
    top = max((max(each.values, default=0) for each in series), default=0)
    ends = [*(start for _, start in stretches[1:]), 1.0]
    drawn = [each for each in series if each.values]
    peaks = [each.points[each.values.index(max(each.values))] for each in drawn]
    plot = Plot(
        kind="area",
        title=title,
        width=1,
        axis=axis_from_zero(top, available),
        lines=[Line(points=each.points, style=f"curve {each.style}") for each in drawn],
        marks=[Mark(x=x, y=y, style=f"peak {each.style}") for each, (x, y) in zip(drawn, peaks, strict=True)],
        uprights=[(start, "stretch") for _, start in stretches],
        legend=[
            Key(text=f"{each.label}, peak {format_size(max(each.values, default=0))}", style=each.style)
            for each in series
        ],
        level=level,
        ends=None if stretches else ("first event", "last event"),
        ticks=[
            Tick(x=start, text=name, width=end - start)
            for (name, start), end in zip(stretches, ends, strict=bool(stretches))
        ],
    )
    return html_chart(plot)


def overlaid(good: ProbeResult, bad: ProbeResult) -> Markup | None:
    """Return both runs' requested (thick) and reserved (thin) bytes; None where one has no curves."""
    if good.curves is None or bad.curves is None:
        return None
    names = sorted({*good.curves.iterations, *bad.curves.iterations})
    runs = (
        ("last good", "first", good.curves, _places(good, bad, names)),
        ("first bad", "second", bad.curves, _places(bad, good, names)),
    )
    series = [
        Series(label=f"{label}, {quantity}", values=values, style=f"{style}{thin}", places=places)
        for label, style, run, places in runs
        for quantity, values, thin in (
            ("requested", run.requested_bytes, ""),
            ("reserved", run.reserved_bytes, " thin"),
        )
    ]
    return curves(
        series,
        title="Requested and reserved bytes of the last good and the first bad run",
        stretches=[
            ("setup" if each < 0 else f"iteration {each}", index / len(names)) for index, each in enumerate(names)
        ],
        available=bad.available_bytes,
    )


def _places(run: ProbeResult, other: ProbeResult, names: Sequence[int]) -> list[float]:
    """Return where on the axis, from 0 to 1, each point of ``run`` lies; iterations are equally wide."""
    if run.curves is None or other.curves is None:
        return []
    own, its = Counter(run.curves.iterations), Counter(other.curves.iterations)
    events, its_events = (
        (side.events or points) / points
        for side, points in ((run, len(run.curves.iterations)), (other, len(other.curves.iterations)))
    )
    places, seen = [], Counter[int]()
    for iteration in run.curves.iterations:
        width = max(own[iteration] * events, its[iteration] * its_events)
        places.append((names.index(iteration) + seen[iteration] * events / width) / len(names))
        seen[iteration] += 1
    return places
