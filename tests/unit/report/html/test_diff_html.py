from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from oomscope.report.charts.curves import Series, curves
from oomscope.report.html.diff import diff_page
from oomscope.units import MiB
from tests.unit.report.differences import EQUAL, GREW, HOSTILE, TWO_DEVICES
from tests.unit.report.html.test_html import Balance

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DIFFERENCES = {"grew": GREW, "equal": EQUAL, "two": TWO_DEVICES}


@cache
def page_of(name: str) -> str:
    return diff_page(DIFFERENCES[name])


@pytest.mark.parametrize("name", DIFFERENCES)
def test_the_page_is_well_formed_and_fetches_nothing(name: str) -> None:
    page = page_of(name)
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    assert not re.search(r"""(src|href)\s*=|@import|url\(""", page)
    assert "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-" in page
    assert page.count("<script>") == 1


def test_a_page_of_many_devices_lines_and_modules_fits_into_a_mebibyte_and_sums() -> None:
    (device,) = GREW.devices
    (line, *_), (module, *_) = device.lines, device.modules
    lines = tuple(replace(line, site=replace(line.site, function="f" * 80, line=number)) for number in range(20_000))
    modules = tuple(replace(module, name=f"layers.{number}.mlp") for number in range(20_000))
    several = [replace(device, rank=rank, lines=lines, modules=modules) for rank in range(2_000)]
    page = diff_page(replace(GREW, devices=tuple(several)))
    assert len(page.encode()) <= MiB
    tables = re.findall(r"<table.*?</table>", page, re.DOTALL)
    for rows in (
        [each for each in tables if "further lines" in each],
        [each for each in tables if "further modul" in each],
    ):
        assert len(rows) == 8
        after = [int(each) for each in re.findall(r'<tr><td class="number" data-bytes="(\d+)"', rows[0])]
        assert sum(after[:-1]) == 20_000 * (line if rows[0].count("further lines") else module).before_bytes
    assert re.search(r"<p class=\"soft\">[\d,]+ further ones, which grew less, are left out", page)


def test_everything_is_escaped() -> None:
    page = diff_page(HOSTILE)
    assert page.count("<script>") == 1
    assert "<script>alert" not in page


def test_curves_end_and_peak_where_they_should() -> None:
    chart = ET.fromstring(
        curves(
            (Series(label="A", values=(0, 5, 1), style="first"), Series(label="B", values=(10, 0, 0), style="second")),
            title="t",
            stretches=(("iteration 0", 0.0), ("iteration 1", 0.5)),
        )
    )
    a, b = (line.get("d") for line in chart.iter("path"))
    assert a == "M0.0,1000.0L500.0,500.0L1000.0,900.0"
    assert b == "M0.0,0.0L500.0,1000.0L1000.0,1000.0"
    styles = {each.get("class"): each.get("style") for each in chart.iter("span")}
    assert styles["peak first"] == "left:50.00%;bottom:50.00%"
    assert styles["peak second"] == "left:0.00%;bottom:100.00%"
    assert {"iteration 0", "iteration 1", "A, peak 5 B"} <= {each.text for each in chart.iter("span")}


def test_a_narrow_screen_names_a_few_parts_of_the_axis_only() -> None:
    stretches = [(f"iteration {number}", number / 10) for number in range(10)]
    chart = ET.fromstring(curves((Series(label="A", values=(1,), style="first"),), title="t", stretches=stretches))
    kept = [each.text for each in chart.iter("span") if each.get("class") == "end"]
    left_out = [each.text for each in chart.iter("span") if each.get("class") == "end minor"]
    assert kept == ["iteration 0", "iteration 3", "iteration 6", "iteration 9"]
    assert len(left_out) == 6


TYPE = """
const box = document.querySelector("input[type=search]");
box.value = "forward mlp";
box.dispatchEvent(new Event("input"));
const [, , difference] = document.querySelectorAll("#lines-1 th[data-sort]");
difference.click();
difference.click();
"""


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH to open the report with")
def test_the_table_is_searched_and_sorted_and_sums_what_it_shows(tmp_path: Path) -> None:
    dom = opened(page_of("grew"), tmp_path)
    assert dom.count("<svg") == 1
    typed = re.sub(r"<meta http-equiv=[^>]*>", "", page_of("grew")).replace(
        "</body>", f"<script>{TYPE}</script></body>"
    )
    table = re.search(r'<table id="lines-1">.*?</table>', opened(typed, tmp_path), re.DOTALL)
    assert table is not None
    rows = re.findall(r"<tr( hidden=\"\")?>(.*?)</tr>", table[0], re.DOTALL)
    assert [bool(hidden) for hidden, _ in rows].count(True) == 3
    differences = [re.findall(r'data-signed="">([^<]*)<', cells)[0] for hidden, cells in rows[1:] if not hidden]
    assert differences == ["0 B", "+100.00 MiB", "+100.00 MiB"]
    assert "2 of 5 rows" in table[0]


def opened(page: str, folder: Path) -> str:
    """Return what a browser makes of ``page``, which must not complain."""
    file = folder / "report.html"
    file.write_text(page, encoding="utf-8")
    done = subprocess.run(
        [
            *(str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
            *("--no-first-run", "--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}", "--dump-dom"),
            file.as_uri(),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "CONSOLE" not in done.stderr
    return done.stdout


@pytest.mark.parametrize("name", DIFFERENCES)
def test_every_table_of_the_peak_ends_with_its_sum(name: str) -> None:
    page = page_of(name)
    tables = re.findall(r"<h2>Requested at the peak, by .*?</table>", page, re.DOTALL)
    assert len(tables) >= 3
    assert all(re.search(r"<tfoot>.*>all</td>", table, re.DOTALL) for table in tables)
