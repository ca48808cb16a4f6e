"""A search as one offline page: the answer and what to do, the range and its probes, the evidence, how to repeat it."""

from __future__ import annotations

from typing import Final, NamedTuple

from markupsafe import Markup

from oomscope.bisect.results.result import BisectResult, CommitCulprit, KeysCulprit
from oomscope.bisect.search.measured import Bytes
from oomscope.report import bisect_sentences
from oomscope.report.bisect_sentences import remedy
from oomscope.report.charts.curves import overlaid
from oomscope.report.charts.html import embedded
from oomscope.report.charts.range import LineView, range_chart, range_data, view_of
from oomscope.report.charts.search import key_matrix, posterior_chart
from oomscope.report.charts.waterfall import waterfall_chart
from oomscope.report.html import bisect_rows
from oomscope.report.html.page import Script, fitting, render
from oomscope.report.html.probe import measurement_charts
from oomscope.report.rows import folded, step_sets
from oomscope.report.text.bisect_tables import BOUND

LINES_SHOWN: Final = 200
"""Lines of code in their table."""
PROBES_SHOWN: Final = 2000
NAMED: Final = 4000
"""Commits of a line that the page can name."""
STEPS_SHOWN: Final = 400
SETS_SHOWN: Final = 100
"""Steps that no probe could split."""
BRANCHES_SHOWN: Final = 4
"""Lines that merges brought in and that are drawn."""
FEWEST: Final = 20
"""Rows of any table that has as many, however little room there is."""


class RangeView(NamedTuple):
    """A line, its chart and the data behind it."""

    name: str
    view: LineView
    chart: Markup
    data: Markup


def bisect_page(result: BisectResult, *, title: str) -> str:
    """Return the page of a search."""
    return fitting(lambda share: _page(result, title, share))


def _page(result: BisectResult, title: str, share: float) -> str:
    shown = max(FEWEST, int(share * PROBES_SHOWN))
    return render(
        "bisect.html.j2",
        Script.read("tables.js", "range.js", "copy.js"),
        title=title,
        result=result,
        ranges=_ranges(result, share),
        sets=list(step_sets(result))[:SETS_SHOWN],
        matrix=key_matrix(result.probes, guilty_keys(result)),
        lines=bisect_rows.line_rows(result.sites, max(FEWEST, int(share * LINES_SHOWN))),
        categories=bisect_rows.category_rows(result.sites),
        probes=result.probes[:shown],
        charts=charts_of(result, max(FEWEST, int(share * STEPS_SHOWN))),
        versions=result.first_bad.result.versions if result.first_bad else {},
        is_commit=isinstance(result.culprit, CommitCulprit),
        is_reserved_known=all(step.delta.reserved_bytes is not None for step in result.steps),
        rows=bisect_rows,
        remedy=remedy(result),
        rates=BOUND if result.posterior else None,
    )


def guilty_keys(result: BisectResult) -> frozenset[str]:
    """Return the keys, variables or hunks at fault by name."""
    names: set[str] = set()
    for culprit in (result.culprit, result.also):
        if isinstance(culprit, KeysCulprit):
            names |= {change.key for change in culprit.keys}
        elif culprit is not None and culprit.narrowed is not None:
            names |= {*culprit.narrowed.keys, *(hunk.name for hunk in culprit.narrowed.guilty)}
    return frozenset(names)


def charts_of(result: BisectResult, steps_shown: int = STEPS_SHOWN) -> dict[str, Markup]:
    """Return the charts of a search by name; those without data are left out."""
    charts: dict[str, Markup] = {}
    if (start := _start(result)) is not None and result.steps:
        charts["steps"] = waterfall_chart(
            folded(result.steps, bisect_sentences.guilty_commit(result))[:steps_shown],
            start,
            culprit=bisect_sentences.guilty_commit(result),
            heaviest=result.heaviest.commit if result.heaviest else None,
        )
    if result.posterior:
        charts["posterior"] = posterior_chart(result, result.posterior)
    good, bad = result.last_good, result.first_bad
    if good and bad and (both := overlaid(good.result, bad.result)):
        charts["overlay"] = both
    if bad and bad.result.verdict and bad.result.verdict.tried and bad.result.peak:
        charts["tried"] = measurement_charts(bad.result)["tried"]
    return charts


def _start(result: BisectResult) -> Bytes | None:
    """Return the bytes of the good end, from which the steps lead; None where it was not measured."""
    if result.waterfall is not None:
        return result.waterfall.start
    ends = (probe.bytes for probe in result.probes if probe.role == "good end" or probe.commit == result.good)
    return next((sizes for sizes in ends if sizes is not None), None)


def _ranges(result: BisectResult, share: float) -> list[RangeView]:
    """Return the line from end to end and those that merges brought in, as far as anything on them was asked."""
    found: list[RangeView] = []
    for line in result.lines[: 1 + BRANCHES_SHOWN]:
        view = view_of(line, result)
        if not view.asked or len(line.places) < 2:
            continue
        name = f"range-{len(found) + 1}"
        title = "Commits from good to bad" if line.merge is None else f"Commits merged by {line.merge[:10]}"
        data = embedded(range_data(view, max(FEWEST, int(share * NAMED))))
        found.append(RangeView(name, view, range_chart(view, name, title=title), data))
    return found
