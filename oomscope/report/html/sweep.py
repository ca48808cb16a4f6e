"""A sweep as one offline page: bytes against time with the best combinations joined, both as tables, and all rows."""

from __future__ import annotations

from oomscope.probe.tuning.sweep import Sweep
from oomscope.report.charts.html import html_chart
from oomscope.report.charts.scatter import sweep_plot
from oomscope.report.html.page import Script, render
from oomscope.report.text import sweep as sweep_grid
from oomscope.report.text.advise import outcome_text
from oomscope.report.text.sweep import tally_text


def sweep_page(sweep: Sweep, *, title: str) -> str:
    """Return the page of a sweep."""
    plot = sweep_plot(sweep)
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
        chart=html_chart(plot) if plot else None,
        outcome_text=outcome_text,
        versions={},
    )
