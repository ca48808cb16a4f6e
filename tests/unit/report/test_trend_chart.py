"""The chart of a trend and its picture: gaps where nothing was measured, a mark for each verdict, a legend."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from oomscope.gate.ledger.history import Entry, Trend, trends
from oomscope.gate.ledger.ledger import Point
from oomscope.gate.night.result import CaseResult
from oomscope.gate.night.status import Status
from oomscope.gate.suite.identity import Series
from oomscope.report.charts.html import html_chart
from oomscope.report.charts.pictures import PANELS, history_figure, history_picture
from oomscope.report.charts.trend import CROWDED, runs, trend_plot
from oomscope.units import GiB, MiB
from tests.unit.gate.nights import case_result

SERIES = Series(suite="ci/memory.yaml", repository="group/project")


def trend_of(*cases: CaseResult) -> Trend:
    points = [
        Point(night=f"n{at}", started=f"2026-01-{1 + at:02}T02:00:00+00:00", suite="/r", series=SERIES, case=case)
        for at, case in enumerate(cases)
    ]
    return trends(points, "peak_requested")[0]


def unmeasured(at: int, status: Status = Status.UNTESTABLE) -> CaseResult:
    return replace(case_result(at, status), values={}, key=None)


def elsewhere(at: int) -> CaseResult:
    case = case_result(at)
    assert case.key is not None
    return replace(case, key=replace(case.key, torch="9.9"))


GAPPED = trend_of(
    case_result(0),
    case_result(1),
    unmeasured(2),
    case_result(3),
    case_result(4, Status.WORSE, live=GiB + 9 * MiB),
    elsewhere(5),
    elsewhere(6),
    unmeasured(7, Status.UNFIT),
)


def test_a_line_joins_neighbours_that_were_measured_under_the_same_conditions() -> None:
    assert runs(GAPPED.entries) == [[0, 1], [3, 4], [5, 6]]
    assert runs([]) == []
    drawn = chart_of(GAPPED, GAPPED.entries)
    assert [path.count(",") for path in re.findall(r' d="([^"]*)"', drawn)] == [2, 2, 2]
    assert drawn.count('class="missed"') == 2


def test_the_legend_names_the_verdicts_that_occur_and_no_other() -> None:
    legend = chart_of(GAPPED, GAPPED.entries).partition('class="plot')[0]
    assert re.findall(r"<span>([^<]+)</span>", legend) == ["unfit", "worse", "untestable", "same"]


def test_every_night_has_a_mark_that_says_all_of_it() -> None:
    drawn = chart_of(GAPPED, GAPPED.entries)
    told = re.findall(r"<title>([^<]+)</title>", drawn)
    assert len(told) == len(GAPPED.entries)
    assert told[4].startswith("2026-01-05 02:00: worse, 1.01 GiB, +9.00 MiB, 0000000000 Change 4")
    assert told[7].startswith("2026-01-08 02:00: unfit, 00")


def test_the_largest_step_is_named_where_it_is() -> None:
    grown = trend_of(case_result(0), case_result(1, live=2 * GiB), case_result(2, live=2 * GiB))
    told = re.findall(r'class="step ([a-z ]+)"[^>]*>([^<]+)<span class="minor">([^<]+)', chart_of(grown, grown.entries))
    assert told == [("behind rise", "+1.00 GiB", " 0000000000")]
    assert 'class="step' not in chart_of(grown, grown.entries[-1:])


def test_an_axis_that_does_not_begin_at_zero_says_so() -> None:
    near, far = (trend_of(case_result(0), case_result(1, live=GiB + size)) for size in (MiB, GiB))
    assert "The axis begins at 0.997 GiB." in chart_of(near, near.entries)
    assert "The axis begins" not in chart_of(far, far.entries)


@pytest.mark.parametrize(("count", "days"), [(1, 1), (2, 2), (5, 5), (8, 4), (400, 5)])
def test_the_first_and_the_last_day_are_named_and_some_between(count: int, days: int) -> None:
    many = trend_of(case_result(0))
    entries = many.entries * count
    drawn = chart_of(replace(many, entries=entries), entries)
    assert len(re.findall(r'class="day ', drawn)) == days
    assert ("crowded" in drawn) == (count > CROWDED)


def chart_of(trend: Trend, entries: Sequence[Entry]) -> str:
    return html_chart(trend_plot(trend, entries))


def marks_of(panel: Any) -> list[Any]:
    return [line for line in panel.get_lines() if line.get_marker() not in {"None", None, ""}]


def test_the_picture_has_the_same_gaps_marks_and_legend() -> None:
    pytest.importorskip("matplotlib")
    figure = history_figure([GAPPED])
    (panel,) = figure.axes
    joined = [list(line.get_xdata()) for line in panel.get_lines() if line.get_linestyle() == "-"]
    assert joined == [[0.5, 1.5], [3.5, 4.5], [5.5, 6.5]]
    assert len(marks_of(panel)) == len(GAPPED.entries)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["unfit", "worse", "untestable", "same"]
    assert history_picture([GAPPED]).startswith(b"\x89PNG")


def test_what_is_worse_is_drawn_first_and_what_is_left_out_is_counted() -> None:
    pytest.importorskip("matplotlib")
    calm = trend_of(case_result(0))
    figure = history_figure([calm] * PANELS + [trend_of(case_result(0, Status.WORSE, name="grown"))])
    assert len(figure.axes) == PANELS
    assert figure.axes[0].get_title(loc="left").startswith("grown")
    assert figure.get_suptitle().endswith(f"{PANELS} of them are shown")
