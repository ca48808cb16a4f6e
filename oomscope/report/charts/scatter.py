"""The combinations of a sweep as points of bytes against time, with the best of them joined by a line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from oomscope.probe.tuning.sweep import Sweep, SweepRow
from oomscope.report import sentences
from oomscope.report.charts.plot import Level, Line, Mark, Plot, axis_from_zero
from oomscope.report.text.advise import variant_text
from oomscope.report.text.sweep import short_names

HEADROOM: Final = 1.06
"""The axes end a little beyond the largest value, so that no point lies on the edge."""
FARTHEST: Final = 2
"""A level this many times above all points is named, not drawn: they would be too close to each other."""


def sweep_plot(sweep: Sweep) -> Plot | None:
    """Return the chart of ``sweep``, both axes from zero; None where no combination has both numbers."""
    names = short_names(sweep)
    rows = [
        (str(number), row, row.slowdown, row.variant.requested_bytes) for number, row in enumerate(sweep.rows, start=1)
    ]
    found = [(label, row, time, size) for label, row, time, size in rows if time is not None and size is not None]
    if not found:
        return None
    level = Level(value=sweep.available_bytes, label="may use") if sweep.available_bytes else None
    largest = round(HEADROOM * max(size for *_, size in found))
    slowest = HEADROOM * max(time for *_, time, _ in found) or 1.0
    front = sorted((time, size) for _, row, time, size in found if row.is_on_front)
    return Plot(
        kind="area scatter",
        title="Peak of requested bytes against estimated time a sequence",
        width=slowest,
        axis=axis_from_zero(largest, level.value if level else None, farthest=FARTHEST),
        lines=[Line(points=front, style="curve", is_stepped=True)],
        marks=[
            Mark(
                x=time,
                y=size,
                style=f"dot {'good' if row.variant.fits else 'bad'}{' best' if row.is_on_front else ''}",
                title=_title(names, row),
                name=label if row.is_on_front else "",
            )
            for label, row, time, size in found
        ],
        level=level,
        ends=("+0 % time", f"+{100 * slowest:.0f} % time"),
    )


def _title(names: Sequence[str], row: SweepRow) -> str:
    values = ", ".join(f"{name}={value}" for name, value in zip(names, row.values, strict=True))
    return f"{values}: {variant_text(row.variant)}, {sentences.slowdown_text(row.slowdown)} time"
