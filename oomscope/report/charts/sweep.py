"""The combinations of a sweep as points of bytes against time, with the best of them joined by a line."""

from __future__ import annotations

from typing import Final

from oomscope.probe.tuning.sweep import Sweep
from oomscope.report.charts.plot import Line, Mark, Plot, axis_from_zero
from oomscope.report.commands.sweep import front_numbers, short_names, variant_text
from oomscope.report.sentences import slowdown_text

HEADROOM: Final = 1.06
"""Multiple of the largest value at which an axis ends, so that no point lies on the edge."""
FARTHEST: Final = 2
"""A level this many times above all points is named, not drawn: they would be too close to each other."""


def sweep_plot(sweep: Sweep) -> Plot | None:
    """Return the chart of ``sweep``, both axes from zero; None where no combination has both numbers."""
    names = short_names(sweep)
    found = [
        (best, row, row.slowdown, row.variant.requested_bytes)
        for best, row in zip(front_numbers(sweep), sweep.rows, strict=True)
        if row.slowdown is not None and row.variant.requested_bytes is not None
    ]
    if not found:
        return None
    points = [(time or 0.0, size or 0) for _, _, time, size in found]
    slowest = HEADROOM * max(time for time, _ in points) or 1.0
    front = sorted(point for point, (_, row, _, _) in zip(points, found, strict=True) if row.is_on_front)
    marks = []
    for (time, size), (best, row, _, _) in zip(points, found, strict=True):
        values = ", ".join(f"{name}={value}" for name, value in zip(names, row.values, strict=True))
        marks.append(
            Mark(
                x=time,
                y=size,
                style=f"dot {'good' if row.variant.fits else 'bad'}{'' if row.is_on_front else ' faint'}",
                title=f"{values}: {variant_text(row.variant)}, {slowdown_text(row.slowdown)} time",
                name=best,
            )
        )
    available = sweep.available_bytes
    return Plot(
        kind="area scatter",
        title="Peak of requested bytes against estimated time a sequence",
        width=slowest,
        axis=axis_from_zero(round(HEADROOM * max(size for _, size in points)), available, farthest=FARTHEST),
        lines=[Line(points=front, style="curve thin", is_stepped=True)],
        marks=marks,
        level=available or None,
        ends=("+0 % time", f"+{100 * slowest:.0f} % time"),
    )
