from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from oomscope.report.html import probe_page
from tests.unit.report import results

VOID = {"meta", "br", "hr", "img", "input", "link"}
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


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


@pytest.mark.parametrize("result", [results.FITS, results.OOM, results.CAPACITY, results.BROKEN])
def test_every_outcome_is_a_well_formed_page(result) -> None:
    page = probe_page(result, title="tinytrain")
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    assert page.startswith("<!doctype html>")


def test_the_page_fetches_nothing() -> None:
    page = probe_page(results.OOM, title="tinytrain")
    assert not re.search(r"""(src|href)\s*=|@import|url\(""", page)
    assert "<script" not in page
    assert "default-src 'none'" in page


def test_the_page_says_what_the_terminal_says() -> None:
    page = probe_page(results.OOM, title="tinytrain")
    for piece in ("OUT OF MEMORY asking for 1.50 GiB", "expandable_segments:True", "fails at event 99", "model.py:88"):
        assert piece in page


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
        fixes=(replace(results.FRAGMENTATION.fixes[0], name=evil, note=evil),),
    )
    oom = replace(results.OOM.oom, site=site, phase=evil)
    result = replace(results.OOM, peak=peak, verdict=verdict, oom=oom, gpu=evil, notes=(evil,), versions={evil: evil})
    assert "<script" not in probe_page(result, title=evil)
    failure = replace(results.BROKEN.failure, message=evil, detail=evil)
    assert "<script" not in probe_page(replace(results.BROKEN, failure=failure), title=evil)


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH to open the report with")
def test_the_page_opens_in_a_browser_without_a_complaint(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(probe_page(results.OOM, title="tinytrain"), encoding="utf-8")
    done = subprocess.run(
        [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
            *("--no-first-run", "--enable-logging=stderr", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"),
            file.as_uri(),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "CONSOLE" not in done.stderr
    assert done.stdout.count("<svg") == 4
    assert "OUT OF MEMORY" in done.stdout
