"""On a narrow screen the tables of the gate fold: nothing is wider than the page, and nothing is cut."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from oomscope.gate.ledger.history import trends
from oomscope.gate.ledger.ledger import Point
from oomscope.gate.night.compare import compare_metric
from oomscope.gate.night.result import Standing
from oomscope.gate.night.status import Status
from oomscope.gate.suite.bands import EXACT
from oomscope.gate.suite.identity import Series
from oomscope.report.html.gate import night_page
from oomscope.report.html.gate_history import history_page
from oomscope.units import GiB
from tests.unit.gate.nights import case_result, night
from tests.unit.report.browser import browse, in_a_browser

LONG = replace(
    case_result(1, Status.WORSE, name="llama3-70b worst rank with a long context"),
    rows=(compare_metric("peak_reserved", 60 * GiB, 171 * GiB, EXACT),),
    reason="import: a_rather_long_identifier_that_nothing_breaks_in_two_wherever_it_may_stand_in_a_sentence",
    standing=Standing(commit="c" * 40, subject="Move attention into its own file and count what was seen"),
)
SUITE = "/home/somebody/with/a/long/path/to/the/repository/of/the/project/ci/memory.yaml"
ASK = """<script>
const wide = [...document.querySelectorAll("html, .scroll")].filter((box) => box.scrollWidth > box.clientWidth);
document.body.dataset.wide = wide.map((box) => box.className || box.tagName).join(" ");
document.body.dataset.at = window.innerWidth;
</script></body>"""
NIGHT = night_page(replace(night(1, LONG, case_result(1)), suite=SUITE))
POINT = Point(night="n1", started="2026-01-01T00:00:00+00:00", series=Series(suite=SUITE), case=LONG)
HISTORY = history_page(trends([POINT, replace(POINT, night="n2")], "peak_requested"), metric="peak_requested")


@pytest.mark.browser
@in_a_browser
def test_no_table_is_wider_than_a_narrow_page(tmp_path: Path) -> None:
    for page in (NIGHT, HISTORY):
        file = tmp_path / "page.html"
        file.write_text(re.sub(r"<meta http-equiv[^>]*>", "", page).replace("</body>", ASK))
        done = browse(file, "--window-size=500,900", "--force-device-scale-factor=1")
        assert re.findall(r'data-at="(\d+)"', done.stdout) == ["500"]
        assert re.findall(r'data-wide="([^"]*)"', done.stdout) == [""]


@pytest.mark.parametrize("page", [NIGHT, HISTORY], ids=["night", "history"])
def test_every_number_of_a_table_that_folds_says_what_it_is(page: str) -> None:
    tables = re.findall(r'<table class="fold".*?</table>', page, re.DOTALL)
    assert tables
    for cell in re.findall(r'<td class="number"[^>]*>[^<]+', "".join(tables)):
        assert "data-label=" in cell or re.search(r">\d{4}-\d\d-\d\d ", cell)
