"""The page of the trends opens without a complaint, and says what the terminal says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from oomscope.gate.history import trends
from oomscope.gate.ledger import Point
from oomscope.gate.result import Standing
from oomscope.gate.status import Status
from oomscope.report import gate_html, page_size
from oomscope.report.console import result_console, show
from oomscope.report.gate_history_text import history_report
from oomscope.report.gate_html import history_page
from oomscope.units import GiB, MiB
from tests.unit.gate.nights import case_result
from tests.unit.report.browser import browse, in_a_browser

HOSTILE = Standing(commit="c" * 40, subject='<script>alert("x")</script>', dirty=True)


def found():
    cases = [
        case_result(1),
        replace(case_result(2, Status.WORSE, live=GiB + MiB), standing=HOSTILE),
        replace(case_result(3, Status.UNTESTABLE), values={}, key=None, reason="no module"),
    ]
    points = [
        Point(night=f"n{number}", started=f"2026-01-0{number}T02:00:00+00:00", suite="/repo/memory.yaml", case=case)
        for number, case in enumerate(cases, start=1)
    ]
    return trends(points, "peak_live")


def test_the_terminal_has_a_row_a_night(capsys: pytest.CaptureFixture[str]) -> None:
    show(result_console(), history_report(found()))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "tiny: peak_live over 3 nights"
    assert [line.split()[:3] for line in lines[-3:]] == [
        ["2026-01-01", "02:00", "same"],
        ["2026-01-02", "02:00", "worse"],
        ["2026-01-03", "02:00", "untestable"],
    ]
    assert "+1.00 MiB" in lines[-2]
    assert "cccccccccc* <script>" in lines[-2]


def test_no_number_of_cases_makes_the_page_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_size, "LARGEST", 150_000)
    points = [
        Point(
            night=f"n{n}", started=f"2026-01-{n + 1:02}T02:00:00+00:00", suite="/s", case=case_result(n, name=f"c{k}")
        )
        for k in range(30)
        for n in range(20)
    ]
    page = history_page(trends(points, "peak_live"), metric="peak_live")
    assert len(page.encode()) <= 150_000
    assert "20 nights, the last 5 shown" in page
    assert "c29: peak_live over 20 nights" in page
    assert "2026-01-20 02:00" in page
    assert "nights, the last" not in history_page(found(), metric="peak_live")


def test_cases_for_which_there_is_no_room_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_html, "TRENDS_SHOWN", 1)
    many = [replace(found()[0], name=f"c{number}") for number in range(7)]
    page = history_page(many, metric="peak_live")
    assert "2 further cases, for which this page has no room" in page


@pytest.mark.browser
@in_a_browser
def test_the_page_opens_without_a_complaint(tmp_path: Path) -> None:
    page = tmp_path / "trend.html"
    page.write_text(history_page(found(), metric="peak_live"))
    done = browse(page)
    assert "CONSOLE" not in done.stderr
    assert "+1.00 MiB" in done.stdout
    assert "<script>alert" not in done.stdout
    assert "untestable" in done.stdout
