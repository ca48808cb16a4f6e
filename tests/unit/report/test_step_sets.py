"""Steps that came with one of several commits are named by themselves, with why they cannot be told apart."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from oomscope.bisect.results.result import BisectResult, ProbeRecord, StepRow
from oomscope.bisect.results.sections import LinePlace, WalkedLine
from oomscope.bisect.search.line import Answer
from oomscope.report.html.bisect import bisect_page
from oomscope.report.rows import step_sets
from oomscope.report.text.bisect import bisect_report
from oomscope.report.text.console import result_console, show
from tests.unit.report import searches
from tests.unit.report.browser import browse, in_a_browser

NAMES = [f"{place:040x}" for place in range(8)]
LINE = WalkedLine(places=tuple(LinePlace(commit=name, subject=f"change {name[-1]}") for name in NAMES))


def step(since: int, until: int) -> StepRow:
    return StepRow(commit=NAMES[until], label="set", since=NAMES[since], commits=until - since, delta=searches.CHANGE)


def search(*steps: StepRow, untestable: tuple[int, ...] = (), is_complete: bool = True) -> BisectResult:
    probes = [
        ProbeRecord(number=place, role="step", commit=NAMES[place], answer=Answer.UNTESTABLE, reason="import")
        for place in untestable
    ]
    waterfall = replace(searches.STEPS.waterfall, is_complete=is_complete)
    return replace(searches.STEPS, steps=steps, lines=(LINE,), probes=tuple(probes), waterfall=waterfall)


def rendered(result: BisectResult) -> str:
    file = io.StringIO()
    show(result_console(file), bisect_report(result))
    return file.getvalue()


@pytest.mark.parametrize(
    ("untestable", "reason"),
    [
        ((3, 4), "none of the 2 commits between can be tested"),
        ((3,), "no commit between stands clear of the spread of a probe; 1 commit between cannot be tested"),
        ((), "no commit between stands clear of the spread of a probe"),
    ],
)
def test_a_set_is_named_with_its_reason(untestable: tuple[int, ...], reason: str) -> None:
    result = search(step(0, 1), step(2, 5), untestable=untestable)
    assert [(each.step.commit, each.reason) for each in step_sets(result)] == [(NAMES[5], reason)]
    text = " ".join(rendered(result).split())
    assert "Cannot be told apart: each of these steps came with one of several commits" in text
    assert reason in text
    page = bisect_page(result, title="t")
    assert "<h2>Cannot be told apart</h2>" in page
    assert reason in page


def test_one_commit_between_is_told_as_one() -> None:
    (only,) = step_sets(search(step(2, 4), untestable=(3,)))
    assert only.reason == "the commit between cannot be tested"


def test_where_every_step_is_one_commit_there_is_no_such_heading() -> None:
    result = search(step(0, 1), step(4, 5))
    assert "told apart" not in rendered(result)
    assert "told apart" not in bisect_page(result, title="t")


def test_what_the_deadline_left_is_no_set() -> None:
    assert list(step_sets(search(step(2, 5), untestable=(3,), is_complete=False))) == []
    assert len(list(step_sets(search(step(2, 5), untestable=(3, 4), is_complete=False)))) == 1


def test_what_was_seen_on_the_way_is_no_set() -> None:
    assert list(step_sets(replace(searches.COMMITS, lines=(LINE,)))) == []


@in_a_browser
@pytest.mark.parametrize(("width", "rows"), [(1280, [2, 2, 1]), (500, [1] * 5)])
def test_tiles_fill_their_rows(tmp_path: Path, width: int, rows: list[int]) -> None:
    script = """<script>
      const box = document.querySelector(".tiles").getBoundingClientRect();
      const tiles = [...document.querySelectorAll(".tile")].map(tile => tile.getBoundingClientRect());
      document.title = JSON.stringify([box.width, ...tiles.map(tile => [tile.top, tile.width])]);
    </script>"""
    page = tmp_path / "page.html"
    unguarded = re.sub("<meta http-equiv[^>]*>", "", bisect_page(searches.COMMITS, title="t"))
    page.write_text(unguarded.replace("</body>", f"{script}</body>"))
    dom = browse(page, f"--window-size={width},2000").stdout
    found = re.search("<title>(.*?)</title>", dom)
    assert found is not None
    whole, *tiles = json.loads(found[1])
    tops = sorted({top for top, _ in tiles})
    assert [sum(top == here for top, _ in tiles) for here in tops] == rows
    for here in tops:
        widths = [wide for top, wide in tiles if top == here]
        assert sum(widths) + 10 * (len(widths) - 1) == pytest.approx(whole, abs=1)
