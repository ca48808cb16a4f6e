"""The page of the trends opens without a complaint, and says what the terminal says."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from oomscope.gate.ledger.history import Trend, trends
from oomscope.gate.ledger.ledger import Point
from oomscope.gate.night.result import CaseResult, Culprit, Standing
from oomscope.gate.night.status import Status
from oomscope.gate.suite.identity import Series
from oomscope.report.html import gate_history as gate_html
from oomscope.report.html import page as page_size
from oomscope.report.html.gate_history import history_page
from oomscope.report.text import gate_history as gate_history_text
from oomscope.report.text.console import result_console, show
from oomscope.report.text.gate_history import history_report
from oomscope.units import GiB, MiB
from tests.unit.gate.nights import case_result
from tests.unit.report.browser import browse, in_a_browser

SERIES = Series(suite="ci/memory.yaml", repository="group/project")
HOSTILE = Standing(commit="c" * 40, subject='<script>alert("x")</script>', dirty=True)


def found():
    cases = [
        case_result(1),
        replace(case_result(2, Status.WORSE, live=GiB + MiB), standing=HOSTILE),
        replace(case_result(3, Status.UNTESTABLE), values={}, key=None, reason="no module"),
    ]
    return trends([point(number, case) for number, case in enumerate(cases, start=1)], "peak_requested")


def point(number: int, case: CaseResult) -> Point:
    started = f"2026-01-0{number}T02:00:00+00:00"
    return Point(night=f"n{number}", started=started, series=SERIES, case=case)


def printed(capsys: pytest.CaptureFixture[str], *trends: Trend, width: int = 100) -> list[str]:
    console = result_console()
    console.width = width
    show(console, history_report(trends))
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("hours", "texts"),
    [
        (("01T02:00", "02T02:00"), ["2026-01-01", "2026-01-02"]),
        (("01T02:00", "01T13:30"), ["2026-01-01 02:00", "2026-01-01 13:30"]),
    ],
)
def test_nights_of_one_day_are_told_apart_by_their_times(hours: tuple[str, ...], texts: list[str]) -> None:
    (trend,) = found()
    entries = [replace(trend.entries[0], started=f"2026-01-{hour}:00+00:00") for hour in hours]
    assert gate_history_text.day_texts(entries) == texts


def test_the_terminal_has_a_row_a_night(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, *found())
    assert lines[0] == "peak_requested of 1 case over 3 nights, the last of 2026-01-03 02:00 UTC"
    at = lines.index("tiny (ci/memory.yaml): peak_requested over 3 nights")
    rows = [line for line in lines[at:] if line.startswith("2026")]
    assert [line.split()[:3] for line in rows[:3]] == [
        ["2026-01-01", "02:00", "same"],
        ["2026-01-02", "02:00", "worse"],
        ["2026-01-03", "02:00", "untestable"],
    ]
    assert "+1.00 MiB" in rows[1]
    assert "cccccccccc* <script>" in rows[1]
    assert lines[at + 1] == "██ "[: len(lines[at + 1])]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_remark_is_shown_however_narrow_the_terminal(capsys: pytest.CaptureFixture[str], width: int) -> None:
    reason = "setup: ModuleNotFoundError: No module named 'a_module_of_ours' (train.py:1 in <module>)"
    (trend,) = found()
    broken = replace(trend, entries=(*trend.entries[:2], *(replace(trend.entries[2], reason=reason),) * 2))
    shown = " ".join(" ".join(printed(capsys, broken, width=width)).split())
    assert shown.count(reason) == 1
    assert "2026-01-03 02:00 to 2026-01-03 02:00" in shown


def test_the_first_lines_say_which_case_grew_by_how_much_when_and_at_which_commit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    grown = case_result(2, Status.WORSE, live=GiB + MiB)
    calm, worse = (
        trends(
            [point(at, replace(case, name=name)) for at, case in enumerate((case_result(1), then), start=1)],
            "peak_requested",
        )[0]
        for name, then in (("calm", case_result(2)), ("grown", grown))
    )
    lines = printed(capsys, calm, worse, width=160)
    grew, stayed = (" ".join(line.split()) for line in lines[3:5])
    assert grew.startswith("grown (ci/memory.yaml) worse 1.00 GiB +1.00 MiB +1.00 MiB on 2026-01-02 02:00: after 0")
    assert stayed == "calm (ci/memory.yaml) same 1.00 GiB 0"


SEARCHED = Culprit(outcome="culprit", message="", commit="e" * 40, subject="Widen", author="Bo")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({}, {}, "after 0000000000, up to 0000000000 Change 2"),
        ({}, {"culprit": SEARCHED}, "eeeeeeeeee Widen, by Bo"),
        ({}, {"standing": None}, "no commit is known"),
        ({"standing": None}, {}, "0000000000 Change 2"),
        ({"standing": HOSTILE}, {"standing": HOSTILE}, 'cccccccccc* <script>alert("x")</script>, the commit of the'),
    ],
)
def test_a_step_is_of_the_commit_that_was_found_or_between_two(before, after, said: str) -> None:
    cases = (replace(case_result(1), **before), replace(case_result(2, live=2 * GiB), **after))
    (trend,) = trends([point(at, case) for at, case in enumerate(cases, start=1)], "peak_requested")
    assert f"+1.00 GiB on 2026-01-02 02:00: {said}" in gate_history_text.step_text(trend)


def test_a_number_that_creeps_is_told_without_a_step() -> None:
    (trend,) = found()
    entries = tuple(replace(entry, band=MiB) for entry in trend.entries)
    assert gate_history_text.step_text(replace(trend, entries=entries)) == "none beyond the band that warns"
    assert gate_history_text.step_text(replace(trend, entries=entries[:1])) == ""


def test_what_came_and_went_is_told_as_gone() -> None:
    cases = (case_result(1), case_result(2, live=2 * GiB), case_result(3))
    (trend,) = trends([point(at, case) for at, case in enumerate(cases, start=1)], "peak_requested")
    assert "-1.00 GiB on 2026-01-03 02:00, gone by now" in gate_history_text.step_text(trend)


def test_no_number_of_cases_makes_the_page_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_size, "LARGEST", 200_000)
    points = [
        Point(
            night=f"n{n}",
            started=f"2026-01-{n + 1:02}T02:00:00+00:00",
            series=SERIES,
            case=case_result(n, name=f"c{k}"),
        )
        for k in range(30)
        for n in range(20)
    ]
    page = history_page(trends(points, "peak_requested"), metric="peak_requested")
    assert len(page.encode()) <= 200_000
    assert "20 nights, the last 5 shown" in page
    assert "c29 (ci/memory.yaml): peak_requested over 20 nights" in page
    assert "2026-01-20 02:00" in page
    assert re.search(r"the last \d+ shown", page)
    assert not re.search(r"the last \d+ shown", history_page(found(), metric="peak_requested"))


def test_cases_for_which_there_is_no_room_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_html, "TRENDS_SHOWN", 1)
    many = [replace(found()[0], name=f"c{number}") for number in range(7)]
    page = history_page(many, metric="peak_requested")
    assert "2 further cases, for which this page has no room" in page


def test_the_page_begins_with_what_is_worse_and_leads_to_it() -> None:
    calm = replace(found()[0], label="calm", entries=found()[0].entries[:1])
    worse = replace(found()[0], label="grown", entries=found()[0].entries[:2])
    page = history_page([calm, worse], metric="peak_requested")
    assert re.findall(r'<a href="#(case-\d)">(\w+)</a>', page) == [("case-1", "grown"), ("case-2", "calm")]
    assert re.findall(r'<h2 id="(case-\d)">(\w+)', page) == [("case-1", "grown"), ("case-2", "calm")]
    assert "+1.00 MiB on 2026-01-02 02:00: after 0000000000, up to cccccccccc*" in page


def test_a_page_has_the_outlines_of_all_its_marks_and_no_other() -> None:
    page = history_page(found(), metric="peak_requested")
    assert set(re.findall(r'href="#(mark-[a-z-]+)"', page)) == set(re.findall(r'id="(mark-[a-z-]+)"', page))
    assert len(re.findall(r'id="mark-', page)) == 3


@pytest.mark.browser
@in_a_browser
def test_the_page_opens_without_a_complaint(tmp_path: Path) -> None:
    page = tmp_path / "trend.html"
    page.write_text(history_page(found(), metric="peak_requested"))
    done = browse(page)
    assert "CONSOLE" not in done.stderr
    assert "+1.00 MiB" in done.stdout
    assert "<script>alert" not in done.stdout
    assert "untestable" in done.stdout
