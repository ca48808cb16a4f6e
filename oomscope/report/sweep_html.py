"""A sweep as one offline page: bytes against time with the best combinations joined, both as tables, and all rows."""

from __future__ import annotations

from markupsafe import Markup

from oomscope.probe.sweep import Sweep
from oomscope.report import sweep_grid, words
from oomscope.report.advise_text import outcome_text, variant_text
from oomscope.report.html import render
from oomscope.report.markup import Level
from oomscope.report.scatter import Point, scatter
from oomscope.report.script import Script
from oomscope.report.sweep_text import tally_text


def sweep_page(sweep: Sweep, *, title: str) -> str:
    """Return the page of a sweep."""
    points = _points(sweep)
    return render(
        "sweep.html.j2",
        Script.read("tables.js"),
        title=title,
        sweep=sweep,
        tally=tally_text(sweep),
        names=sweep_grid.short_names(sweep),
        lines=sweep_grid.lines_of(sweep),
        live=sweep_grid.shares(sweep.rows, sweep_grid.requested_bytes),
        slow=sweep_grid.shares(sweep.rows, sweep_grid.slowdown),
        chart=_chart(sweep, points) if points else None,
        outcome_text=outcome_text,
        versions={},
    )


def _chart(sweep: Sweep, points: list[Point]) -> Markup:
    level = Level(value=sweep.available_bytes, label="may use") if sweep.available_bytes else None
    return scatter(points, title="Peak of requested bytes against estimated time a sequence", level=level)


def _points(sweep: Sweep) -> list[Point]:
    names = sweep_grid.short_names(sweep)
    points = []
    for number, row in enumerate(sweep.rows, start=1):
        if row.variant.requested_bytes is None or row.slowdown is None:
            continue
        values = ", ".join(f"{name}={value}" for name, value in zip(names, row.values, strict=True))
        points.append(
            Point(
                label=str(number),
                title=f"{values}: {variant_text(row.variant)}, {words.slowdown_text(row.slowdown)} time",
                time=row.slowdown,
                size=row.variant.requested_bytes,
                tone="good" if row.variant.fits else "bad",
                is_best=row.is_on_front,
            )
        )
    return points
