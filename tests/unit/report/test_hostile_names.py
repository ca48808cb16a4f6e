"""Every page that oomscope writes, with markup in the place of every name that comes from elsewhere, in a browser.

Each page is read as text as well as drawn: a name has to be seen as it was written, and to make no element.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from oomscope.bisect.results.result import CommitCulprit
from oomscope.gate.ledger.history import trends
from oomscope.gate.ledger.ledger import Point
from oomscope.gate.night.result import CaseResult, Standing
from oomscope.gate.night.status import Status
from oomscope.gate.suite.identity import Series
from oomscope.probe.tuning.sweep import Axis, Sweep
from oomscope.report.html.bisect import bisect_page
from oomscope.report.html.diff import diff_page
from oomscope.report.html.gate import night_page
from oomscope.report.html.gate_history import history_page
from oomscope.report.html.probe import probe_page
from oomscope.report.html.sweep import sweep_page
from oomscope.snapshot.compare.diff import Named, diff
from oomscope.snapshot.trace import Category
from oomscope.units import GiB
from tests.unit.gate.nights import case_result, night
from tests.unit.report import differences, drawn, results, searches
from tests.unit.report.browser import browse, in_a_browser
from tests.unit.report.charts.test_sweep_pictures import row

EVIL = '"\'><img src=x onerror=window.pwned=1></script><script>window.pwned=1</script>{{7*7}}<b x="'
SHOWN = "<img src=x onerror=window.pwned=1>"


def probe() -> str:
    site = replace(results.MLP, file=f"/{EVIL}.py", function=EVIL, module=EVIL)
    sites = tuple(replace(each, site=site) for each in results.SITES)
    peak = replace(results.PEAK, site=site, sites=sites, phase=EVIL)
    return probe_page(replace(results.FITS, peak=peak, gpu=EVIL, notes=(EVIL,)), title=EVIL)


def failed_probe() -> str:
    failure = results.BROKEN.failure
    assert failure is not None
    return probe_page(replace(results.BROKEN, failure=replace(failure, message=EVIL, detail=EVIL)), title=EVIL)


def explanation() -> str:
    return drawn.page(drawn.failing(EVIL), file=EVIL)


def difference() -> str:
    before, after = (
        differences.snapshot(((size, 1, EVIL, Category.ACTIVATION),), file=f"/{EVIL}.py") for size in (9, 8)
    )
    return diff_page(diff(Named(EVIL, before), Named(EVIL, after)))


def grid() -> str:
    axes = (Axis("recompute", (EVIL, "none")),)
    rows = (row((EVIL,), "fits", 3 * GiB, 0.1), row(("none",), "oom", 5 * GiB, None))
    return sweep_page(Sweep(axes=axes, rows=rows, available_bytes=4 * GiB), title=EVIL)


def search() -> str:
    found = searches.COMMITS
    probes = tuple(replace(each, subject=EVIL, reason=EVIL) for each in found.probes)
    assert isinstance(found.culprit, CommitCulprit)
    culprit = replace(found.culprit, subject=EVIL, author=EVIL)
    return bisect_page(replace(found, probes=probes, culprit=culprit, message=EVIL, notes=(EVIL,)), title=EVIL)


def hostile_case(number: int) -> CaseResult:
    standing = Standing(commit="c" * 40, subject=EVIL, dirty=True)
    return replace(case_result(number, Status.WORSE, name=EVIL, live=2 * GiB), standing=standing, reason=EVIL)


def gate_night() -> str:
    return night_page(replace(night(1, hostile_case(1)), suite=f"/{EVIL}.yaml"))


def gate_history() -> str:
    series = Series(suite=f"/{EVIL}.yaml", repository=EVIL)
    point = Point(night="n", started="2026-01-01T02:00:00+00:00", series=series, case=hostile_case(1))
    return history_page(trends([point], "peak_requested"), metric="peak_requested")


PAGES: tuple[Callable[[], str], ...] = (
    probe,
    failed_probe,
    explanation,
    difference,
    grid,
    search,
    gate_night,
    gate_history,
)
LOOK = """
function look(frame) {
  const page = frame.contentDocument;
  return {
    title: frame.title,
    made: page.querySelectorAll("img[src=x], [onerror]").length,
    ran: frame.contentWindow.pwned === undefined ? 0 : 1,
    shown: (page.body.textContent + page.title).includes("<img src=x onerror=window.pwned=1>"),
    computed: page.body.textContent.includes('49<b x='),
  };
}
addEventListener("load", () => {
  const frames = [...document.querySelectorAll("iframe")];
  document.querySelector("pre").textContent = JSON.stringify(frames.map(look));
});
"""


@pytest.mark.browser
@in_a_browser
def test_a_name_is_seen_as_it_is_written_and_makes_nothing(tmp_path: Path) -> None:
    frames = "".join(
        f'<iframe width="900" height="700" title="{page.__name__}" srcdoc="{html.escape(page())}"></iframe>'
        for page in PAGES
    )
    file = tmp_path / "pages.html"
    file.write_text(f"<!doctype html><pre></pre><script>{LOOK}</script>{frames}", encoding="utf-8")
    done = browse(file)
    assert "CONSOLE" not in done.stderr
    told = re.search(r"<pre>(.*?)</pre>", done.stdout, re.DOTALL)
    assert told is not None
    seen = {page["title"]: page for page in json.loads(html.unescape(told[1]))}
    assert list(seen) == [page.__name__ for page in PAGES]
    for page in seen.values():
        assert (page["made"], page["ran"], page["shown"], page["computed"]) == (0, 0, True, False), page["title"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.__name__)
def test_no_page_holds_a_name_as_it_is_written(page: Callable[[], str]) -> None:
    assert SHOWN in EVIL
    assert SHOWN not in page()
