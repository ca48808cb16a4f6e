"""One self-contained HTML file a report: styles and charts are inside, nothing is fetched, everything is escaped."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import oomscope
from oomscope.printable import printable
from oomscope.probe.result import Peak, PhaseBytes, ProbeResult
from oomscope.report import bisect_sentences, sentences
from oomscope.report.charts.bars import Bar, bars
from oomscope.report.charts.curves import area
from oomscope.report.charts.plot import Level
from oomscope.report.html.script import Script
from oomscope.report.rows import highest_phases, lines
from oomscope.snapshot.verdict_types import FixTried
from oomscope.units import format_size

LINES_SHOWN = 40
SEARCHED_FROM = 6
"""Rows from which a table has a box to search it."""


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


def _harmless(value: Any) -> Any:
    """Return what a template prints: names and messages of other people's without the control characters in them."""
    return printable(value) if isinstance(value, str) else value


def render(template: str, script: Script | None = None, **values: Any) -> str:
    """Return the named template of this package, filled with ``values``, everything in them escaped.

    Without a ``script`` the page's policy lets none run.
    """
    return _environment().get_template(template).render(version=oomscope.__version__, script=script, **values)


@cache
def _environment() -> Environment:
    """Return what fills the templates; it keeps them compiled."""
    environment = Environment(
        loader=PackageLoader("oomscope.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_harmless,
    )
    environment.filters["size"] = format_size
    environment.filters["signed_size"] = partial(format_size, signed=True)
    environment.globals.update(sentences=sentences, bisect_sentences=bisect_sentences, SEARCHED_FROM=SEARCHED_FROM)
    return environment
