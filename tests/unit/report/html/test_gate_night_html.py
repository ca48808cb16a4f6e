"""The page of a night: what the terminal says, whose commit it was, small for any suite, and nothing that runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from oomscope.gate.night.compare import compare_metric
from oomscope.gate.night.result import CaseResult, Culprit, GrownLine
from oomscope.gate.night.status import GRAVITY, Status
from oomscope.gate.suite.bands import EXACT
from oomscope.report.html.gate import night_page
from oomscope.units import GiB, MiB
from tests.unit.gate.nights import case_result, night
from tests.unit.report import results
from tests.unit.report.browser import browse, in_a_browser
from tests.unit.report.html.test_html import Balance

EVIL = "<script>alert('x')</script>"


def red(text: str = "Grow", name: str = "tiny") -> CaseResult:
    """A case that went out of memory, and whose commit it was."""
    grown = (GrownLine(site=replace(results.LOSS, file=f"{text}.py"), category="activation", delta_bytes=MiB),)
    culprit = Culprit(
        outcome="culprit",
        message="",
        good="a" * 40,
        commit="c" * 40,
        subject=text,
        author=text,
        verdict=f"Verdict {text}",
        grown=grown,
        commands=(f"oomscope probe {text}",),
    )
    row = compare_metric("peak_requested", GiB, GiB + MiB, EXACT)
    case = replace(case_result(1, Status.WORSE, name=name), rows=(row,), outcome="oom", probe=results.OOM)
    return replace(case, culprit=culprit, reason=f"out of memory {text}", notes=(text,))


def test_every_status_is_a_well_formed_page() -> None:
    cases = [replace(case_result(1, status, name=str(status)), probe=results.FITS) for status in GRAVITY]
    page = night_page(night(1, *cases, red(), replace(case_result(2, Status.UNTESTABLE), probe=results.BROKEN)))
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    assert "http" not in page.replace("http-equiv", "")


def test_a_red_night_says_whose_commit_it_was_and_why() -> None:
    page = night_page(night(1, case_result(1, name="other"), red()))
    for piece in (
        "RED, 2 cases: 1 worse, 1 same",
        "cccccccccc",
        "Verdict Grow",
        "Grow.py:",
        "oomscope probe Grow",
        "expandable_segments:True",
        "fix it, or accept it",
    ):
        assert piece in page
    assert page.index("tiny") < page.index("other")


def test_green_is_called_green_and_red_is_not() -> None:
    assert '<p class="status good">GREEN' in night_page(night(1))
    for status in GRAVITY:
        found = night(1, case_result(1, status))
        assert ('class="status bad"' in night_page(found)) == (found.exit_code != 0)


def test_everything_is_escaped() -> None:
    page = night_page(night(1, red(EVIL, name=EVIL), replace(case_result(1, Status.UNTESTABLE), reason=EVIL)))
    assert "<script>alert" not in page
    assert "\x1b" not in night_page(night(1, red("\x1b[31m")))


def test_the_page_of_a_large_suite_is_small() -> None:
    page = night_page(night(1, *(red(name=f"case {number}") for number in range(300))))
    assert len(page.encode()) <= MiB
    assert "300 cases" in page
    assert "not as expected: the JSON document has the evidence" in page


@pytest.mark.browser
@in_a_browser
def test_the_page_opens_in_a_browser_without_a_complaint(tmp_path: Path) -> None:
    page = tmp_path / "night.html"
    page.write_text(night_page(night(1, red(EVIL), case_result(2))), encoding="utf-8")
    done = browse(page)
    assert "CONSOLE" not in done.stderr
    assert '<button type="button" class="copy"' in done.stdout
    assert 'tabindex="0"' in done.stdout
