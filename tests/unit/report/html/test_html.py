from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from oomscope.report.html.gate import night_page
from oomscope.report.html.probe import probe_page
from tests.unit.gate.nights import case_result, night
from tests.unit.report import results
from tests.unit.report.browser import browse, in_a_browser

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Balance(HTMLParser):
    """Fails where tags do not close in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs) -> None:
        pass

    def handle_endtag(self, tag) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag


PAGES = [
    probe_page(result, title="t")
    for result in (results.FITS, results.OOM, results.CONFIRMED, results.CAPACITY, results.BROKEN)
]


@pytest.mark.parametrize("page", PAGES, ids=range(len(PAGES)))
def test_every_outcome_is_a_well_formed_page(page: str) -> None:
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    assert page.startswith("<!doctype html>")


@pytest.mark.parametrize("page", PAGES, ids=range(len(PAGES)))
def test_the_page_fetches_nothing(page: str) -> None:
    assert not re.search(r"""(src|href)\s*=|@import|url\(""", page)
    assert "<script" not in page
    assert "default-src 'none'" in page


def test_the_page_says_what_the_terminal_says() -> None:
    page = probe_page(results.OOM, title="tinytrain")
    for piece in ("OUT OF MEMORY asking for 1.50 GiB", "expandable_segments:True", "fails at event 99", "model.py:88"):
        assert piece in page


def test_the_page_tells_settings_that_were_run_from_replays() -> None:
    page = probe_page(results.CONFIRMED, title="tinytrain")
    for piece in (
        "<th>By</th>",
        "ran to the end",
        "failed in optimizer of iteration 2",
        "Not run, beyond the limits of number and time",
    ):
        assert piece in page
    assert "<th>By</th>" not in probe_page(results.OOM, title="tinytrain")


def test_what_is_wider_than_its_box_shows_a_shade_where_there_is_more() -> None:
    style = probe_page(results.OOM, title="t").partition("</style>")[0]
    rule = re.search(r"\.scroll, pre \{([^}]*)\}", style)
    assert rule is not None
    assert "overflow-x: auto" in rule[1]
    assert len(re.findall(r"var\(--under\) 14px, transparent\)[^,]* local,", rule[1])) == 2
    assert len(re.findall(r"var\(--shade\), transparent\)[^,]* scroll,", rule[1])) == 2
    assert len(re.findall(r"--shade: #[0-9a-f]{8};", style)) == 2  # light and dark


def test_everything_is_escaped() -> None:
    evil = "<script>alert('x')</script>"
    site = replace(results.LOSS, file=evil, function=evil, module=evil)
    rows = (replace(results.SITES[0], site=site, category=evil),)
    peak = replace(results.PEAK, site=site, sites=rows, categories={evil: results.PEAK.requested_bytes})
    verdict = replace(
        results.FRAGMENTATION,
        headline=evil,
        cured_by=(evil,),
        gaps=(replace(results.FRAGMENTATION.gaps[0], text=evil),),
        tried=(replace(results.FRAGMENTATION.tried[0], name=evil, note=evil),),
    )
    oom = replace(results.OOM.oom, site=site, phase=evil)
    result = replace(results.OOM, peak=peak, verdict=verdict, oom=oom, gpu=evil, notes=(evil,), versions={evil: evil})
    assert "<script" not in probe_page(result, title=evil)
    failure = replace(results.BROKEN.failure, message=evil, detail=evil)
    assert "<script" not in probe_page(replace(results.BROKEN, failure=failure), title=evil)


@pytest.mark.browser
@in_a_browser
def test_the_page_opens_in_a_browser_without_a_complaint(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(probe_page(results.OOM, title="t"), encoding="utf-8")
    done = browse(file)
    assert "CONSOLE" not in done.stderr
    assert done.stdout.count("<figure") == 4
    assert "OUT OF MEMORY" in done.stdout


def test_control_characters_of_other_people_reach_no_page() -> None:
    hostile = "\x1b[31m\u202egnp.exe\udcff"
    site = replace(results.SITES[0], site=replace(results.MLP, function=hostile))
    fixes = tuple(replace(fix, name=hostile) for fix in results.FRAGMENTATION.tried)
    verdict = replace(results.FRAGMENTATION, tried=fixes, headline=hostile)
    peak = replace(results.PEAK, sites=(site,), categories={hostile: 1})
    page = probe_page(replace(results.OOM, verdict=verdict, peak=peak, notes=(hostile,)), title=hostile)
    assert "\\x1b[31m\\u202egnp.exe\\xff" in page
    assert not set("\x1b\u202e\udcff") & set(page)


@pytest.mark.parametrize(("rows", "is_hidden"), [(1, True), (5, True), (6, False)])
def test_few_rows_have_no_box_to_search_them(rows: int, is_hidden: bool) -> None:
    page = night_page(night(1, *(case_result(number, name=f"case{number}") for number in range(rows))))
    (box,) = re.findall(r'<input type="search"[^>]*>', page)
    assert (" hidden" in box) is is_hidden
