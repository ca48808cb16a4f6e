"""A probe as one offline page, and the charts of one measurement that other pages show too."""

from __future__ import annotations

from markupsafe import Markup

from oomscope.probe.result import Peak, PhaseBytes, ProbeResult
from oomscope.report import sentences
from oomscope.report.charts.bars import Bar, bars
from oomscope.report.charts.curves import area
from oomscope.report.charts.plot import Level
from oomscope.report.html.page import render
from oomscope.report.rows import highest_phases, lines
from oomscope.snapshot.verdict_types import FixTried
from oomscope.units import format_size

LINES_SHOWN = 40


def probe_page(result: ProbeResult, *, title: str) -> str:
    """Return the page of one rank's measurement."""
    sites = lines(result.peak.sites, LINES_SHOWN) if result.peak else []
    charts = measurement_charts(result)
    return render("probe.html.j2", title=title, result=result, sites=sites, charts=charts, versions=result.versions)


def measurement_charts(result: ProbeResult) -> dict[str, Markup]:
    """Return the charts of one measurement by name; one without a measurement has none."""
    if result.peak is None:
        return {}
    level = Level(value=result.available_bytes, label="may use") if result.available_bytes else None
    fixes = result.verdict.tried if result.verdict else ()
    return {
        "timeline": area(result.timeline, title="Requested bytes over the run", level=level),
        "categories": bars(_category_bars(result.peak), title="Requested bytes at the peak by category"),
        "phases": bars(
            [_phase_bar(row) for row in highest_phases(result.phases)],
            title="Peak of requested bytes by phase",
            level=level,
        ),
        "tried": bars(
            [_fix_bar(fix) for fix in fixes], title="Peak reserved under each allocator setting", level=level
        ),
    }


def _category_bars(peak: Peak) -> list[Bar]:
    ordered = sorted(peak.categories.items(), key=lambda item: -item[1])
    return [
        Bar(
            label=name.replace("_", " "),
            value=size,
            text=f"{format_size(size)}, {sentences.percent(size, peak.requested_bytes)}",
        )
        for name, size in ordered
        if size
    ]


def _phase_bar(row: PhaseBytes) -> Bar:
    return Bar(label=sentences.moment_text(row.iteration, row.phase), value=row.requested_bytes)


def _fix_bar(fix: FixTried) -> Bar:
    return Bar(label=fix.name, value=fix.peak_reserved_bytes, tone="good" if fix.survives else "bad")
