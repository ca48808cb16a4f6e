"""Requested or reserved bytes of one or several runs over one axis, the peak of each marked.

The last good and the first bad run of a search are laid over each other by iteration, so that what came between them is
seen. Within an iteration their events stand side by side, so that one that a failure cut off ends early.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from oomscope.probe.result import ProbeResult
from oomscope.report import parts
from oomscope.report.charts.html import embedded, html_chart, packed
from oomscope.report.charts.plot import Key, Line, Mark, Plot, Tick, axis_from_zero
from oomscope.units import format_size

PARTS: Final = 1_000_000
"""Parts of the axis: places are whole numbers of them in data."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """One of the curves."""

    label: str
    values: Sequence[int]
    style: str
    """CSS class: ``first`` or ``second``, with ``thin`` for what is beside it."""
    places: Sequence[float] = ()
    """Places of the values on the axis, from 0 to 1; evenly over all of it unless given."""

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
    compared: tuple[Series, Series] | None = None,
    name: str = "",
) -> Markup:
    """Return the curves, from zero.

    ``stretches`` are names of parts of the axis, and where each begins, from 0 to 1; empty for an axis of events. The
    area between the two ``compared`` is filled, by which of them is higher. ``name`` is the id of the element with
    :func:`curves_data`.
    """
    top = max((max(each.values, default=0) for each in series), default=0)
    ends = [*(start for _, start in stretches[1:]), 1.0]
    drawn = [each for each in series if each.values]
    peaks = [each.points[each.values.index(max(each.values))] for each in drawn]
    plot = Plot(
        kind="area",
        title=title,
        width=1,
        axis=axis_from_zero(top, available),
        lines=[
            *(_between(*compared) if compared else ()),
            *(Line(points=each.points, style=f"curve {each.style}") for each in drawn),
        ],
        marks=[Mark(x=x, y=y, style=f"peak {each.style}") for each, (x, y) in zip(drawn, peaks, strict=True)],
        uprights=[(start, "stretch") for _, start in stretches],
        legend=[
            Key(text=f"{each.label}, peak {format_size(max(each.values, default=0))}", style=each.style)
            for each in series
        ]
        + ([Key(text="grew", style="grew"), Key(text="shrank", style="shrank")] if compared else []),
        level=available or None,
        ends=None if stretches else ("first event", "last event"),
        ticks=[
            Tick(x=start, text=name, width=end - start)
            for (name, start), end in zip(stretches, ends, strict=bool(stretches))
        ],
    )
    return html_chart(plot, curves=name) if name else html_chart(plot)


def overlaid_chart(
    heading: str,
    series: Sequence[Series],
    *,
    title: str,
    name: str,
    stretches: Sequence[tuple[str, float]],
    available: int | None = None,
) -> parts.Figure:
    """Return the curves of two runs: those of the first, then as many of the second; the first of each are compared."""
    compared = series[0], series[len(series) // 2]
    chart = curves(series, title=title, stretches=stretches, available=available, compared=compared, name=name)
    data = embedded(curves_data(series, stretches=stretches))
    return parts.Figure(title=heading, markup=chart, data=data, name=name)


def curves_data(series: Sequence[Series], *, stretches: Sequence[tuple[str, float]] = ()) -> dict[str, Any]:
    """Return the data of the curves for a script: the values of all where any has a point, -1 beyond its end."""
    drawn = [each for each in series if each.values]
    places = np.unique(np.concatenate([np.array(each.points)[:, 0] for each in drawn]))
    columns = [_values_at(places, each, beyond=-1).astype(np.int64) for each in drawn]
    return {
        "labels": [each.label for each in drawn],
        "stretches": list(stretches),
        **packed([np.round(places * PARTS).astype(np.int64), *columns]),
        "parts": PARTS,
    }


def _between(first: Series, second: Series) -> Iterator[Line]:
    """Yield the areas in which ``second`` is higher, and those in which it is lower, up to where both reach."""
    if not (first.values and second.values):
        return
    one, other = np.array(first.points), np.array(second.points)
    places = np.unique(np.concatenate([one[:, 0], other[:, 0]]))
    places = places[(places >= max(one[0, 0], other[0, 0])) & (places <= min(one[-1, 0], other[-1, 0]))]
    before, after = _values_at(places, first), _values_at(places, second)
    highest = np.maximum(before, after).tolist()
    for style, floor in (("grew", before), ("shrank", after)):
        points = list(zip(places.tolist(), highest, strict=True))
        yield Line(points=points, style=f"fill {style}", is_filled=True, floor=floor.tolist())


def _values_at(places: NDArray[np.float64], series: Series, *, beyond: float | None = None) -> NDArray[np.float64]:
    """Return the values at some places; ``beyond`` the ends of the series."""
    points = np.array(series.points, dtype=np.float64)
    return np.asarray(np.interp(places, points[:, 0], points[:, 1], left=beyond, right=beyond))


def overlaid(good: ProbeResult, bad: ProbeResult) -> parts.Figure | None:
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
    stretches = [("setup" if each < 0 else f"iteration {each}", index / len(names)) for index, each in enumerate(names)]
    return overlaid_chart(
        "Both runs over each other",
        series,
        title="Requested and reserved bytes of the last good and the first bad run",
        name="curves",
        stretches=stretches,
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
