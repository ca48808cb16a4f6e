"""The charts of a search: what they show is where and as large as it should be."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oomscope.bisect.results.result import StepRow
from oomscope.bisect.search.measured import Bytes
from oomscope.printable import printable
from oomscope.probe.result import RunCurves
from oomscope.report import sentences
from oomscope.report.charts.curves import iteration_names, overlaid, places_of
from oomscope.report.charts.range import range_chart, range_data, view_of
from oomscope.report.charts.search import key_matrix
from oomscope.report.charts.waterfall import waterfall_chart
from oomscope.report.html import bisect_rows
from oomscope.report.html.bisect import guilty_keys
from oomscope.units import GiB, MiB
from tests.unit.report import long_searches, results, searches
from tests.unit.report.test_bars import of_class, shares

sizes = st.integers(-(2**40), 2**40)


def row(live: int, reserved: int, **fields) -> StepRow:
    return StepRow(commit=None, label="step", delta=Bytes(requested_bytes=live, reserved_bytes=reserved), **fields)


@settings(max_examples=30)
@given(st.lists(st.tuples(sizes, sizes), min_size=1, max_size=8))
def test_each_bar_begins_where_the_one_above_ends(deltas) -> None:
    steps = [row(*delta) for delta in deltas]
    chart = waterfall_chart(steps, Bytes(requested_bytes=GiB, reserved_bytes=GiB), culprit=None, heaviest=None)
    rows = [each for each in ET.fromstring(chart) if each.get("class") == "row"]
    at = None
    for element, step in zip(rows, steps, strict=True):
        (bar,) = (each for each in element[1].iter() if (each.get("class") or "").startswith("bar"))
        style = dict(part.split(":") for part in bar.get("style").split(";"))
        left, width = (float(style[name].rstrip("%")) for name in ("left", "width"))
        first, last = (left, left + width) if step.delta.requested_bytes >= 0 else (left + width, left)
        assert 0 <= left <= left + width <= 100.01
        assert at is None or first == pytest.approx(at, abs=0.03)
        at = last


def test_a_waterfall_marks_the_culprit_the_heaviest_and_what_a_merge_brought() -> None:
    chart = waterfall_chart(
        [replace(searches.COMMITS.steps[0], merge="e" * 40), searches.COMMITS.steps[1]],
        Bytes(requested_bytes=6 * GiB, reserved_bytes=7 * GiB),
        culprit=searches.BAD,
        heaviest=searches.MIDDLE,
    )
    one, other = re.findall(r'<div class="row(?: culprit)?">.*?</div>', chart, re.DOTALL)
    assert "(merged by eeeeeeeeee)" in one
    assert ">heaviest<" in one
    assert 'class="row culprit"' in other
    assert ">at fault<" in other
    assert "6.00 GiB … 9.00 GiB" in chart


def test_marks_stand_where_their_commits_do() -> None:
    view = view_of(long_searches.THOUSAND.lines[0], long_searches.THOUSAND)
    chart = printable(range_chart(view, "range-1", title="t"))
    marks = [shares(mark)["left"] for mark in of_class(chart, "mark")]
    assert marks == pytest.approx([100 * (each.place + 0.5) / 1001 for each in view.asked], abs=0.01)
    assert (view.culprit, view.bracket) == (734, (733, 734))
    assert len(of_class(chart, "culprit")) == 1
    data = range_data(view, 30)
    assert len(data["names"]) == 30
    assert data["answers"][734] == ["probe 8: bad, out of memory in loss (capacity)"]


def test_the_commits_around_the_answer_are_listed() -> None:
    view = view_of(long_searches.THOUSAND.lines[0], long_searches.THOUSAND)
    rows = bisect_rows.places_around(view)
    assert [each.place for each in rows] == list(range(727, 741))
    assert [each.place for each in rows if each.is_culprit] == [734]
    assert rows[0].text == "not looked into, before a good commit"


def test_keys_that_always_moved_together_are_one_row_and_guilty_ones_come_first() -> None:
    probes = [replace(searches.PROBES[0], commit=None, keys=keys) for keys in ((), ("a", "b", "c", "d"), ("a", "b"))]
    matrix = key_matrix(probes, {"c"})
    assert [(each.keys, each.made, each.is_guilty) for each in matrix.rows] == [
        (("c",), (False, True, False), True),
        (("a", "b"), (False, True, True), False),
        (("d",), (False, True, False), False),
    ]
    assert key_matrix(searches.PROBES, ()) is None
    assert guilty_keys(long_searches.BOTH) >= {"data.seq_length", long_searches.NARROWED.hunks[0].name}


@settings(max_examples=30)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_points_of_an_iteration_lie_inside_it(one, other) -> None:
    good, bad = (
        replace(
            result,
            events=len(points) * 10,
            curves=RunCurves(
                requested_bytes=tuple(points), reserved_bytes=tuple(points), iterations=tuple(sorted(points))
            ),
        )
        for result, points in ((results.FITS, one), (results.OOM, other))
    )
    names = iteration_names(good.curves, bad.curves)
    for run, beside in ((good, bad), (bad, good)):
        places = places_of(run, beside, names)
        assert places == sorted(places)
        for place, iteration in zip(places, run.curves.iterations, strict=True):
            assert names.index(iteration) <= place * len(names) + 1e-9 < names.index(iteration) + 1


def test_a_run_that_failed_ends_where_the_other_one_had_come_as_far() -> None:
    names = iteration_names(long_searches.GOOD_RUN.curves, long_searches.BAD_RUN.curves)
    assert names == [0, 1, 2, 3]
    last = places_of(long_searches.BAD_RUN, long_searches.GOOD_RUN, names)[-1]
    assert last == pytest.approx((2 + 0.5) / 4, abs=0.01)
    assert overlaid(results.FITS, long_searches.BAD_RUN) is None


def test_bars_of_differences_share_one_zero() -> None:
    temporary, request, activation = bisect_rows.line_rows(searches.SITES, 8)
    assert (temporary.delta, request.delta, activation.delta) == (2 * GiB, 512 * MiB, -512 * MiB)
    assert (temporary.left, temporary.width) == ("20.00%", "80.00%")
    assert (activation.left, activation.width) == ("0.00%", "20.00%")
    rows = bisect_rows.category_rows([*searches.SITES, searches.SITES[0]])
    assert (rows[0].name, rows[0].delta) == ("temporary", 4 * GiB)


@pytest.mark.parametrize(("seconds", "text"), [(4.21, "4.2 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")])
def test_durations_in_words(seconds: float, text: str) -> None:
    assert sentences.duration_text(seconds) == text


def test_the_cost_in_words() -> None:
    facts = dict(bisect_rows.cost_facts(long_searches.THOUSAND))
    assert facts["Begun"] == "140 runs"
    assert facts["Side by side"] == "2 slots"
    assert facts["Time"] == "5 min 1 s"
