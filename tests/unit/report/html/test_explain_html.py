"""The page of an explained snapshot: whole without a script, and with one a timeline that finds what is asked for."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from oomscope.report.html.explain import explain_page
from oomscope.snapshot.explain.composition import Composition, composition_at
from oomscope.snapshot.explain.curves import Bins, bins_of
from oomscope.snapshot.explain.drawing import Drawing, floor_plan
from oomscope.snapshot.explain.rank_set import RankRow, RankSet
from oomscope.snapshot.infer.categorise import categorise
from oomscope.snapshot.replay.segment_map import SegmentMap
from oomscope.snapshot.timeline import Timeline
from oomscope.snapshot.trace import Segment
from oomscope.units import MiB
from tests.unit.report import drawn
from tests.unit.report.browser import browse, in_a_browser
from tests.unit.report.html.test_html import Balance

PAGES = {"fails": drawn.failing_page, "redacted": cache(lambda: drawn.page(drawn.failing(), redact="all"))}


@pytest.mark.parametrize("made", PAGES.values(), ids=PAGES)
def test_the_page_is_well_formed_and_fetches_nothing(made: Callable[[], str]) -> None:
    page = made()
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    assert not re.search(r"""(src|href)\s*=|@import|url\(|https?://""", page)
    assert "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-" in page
    assert page.count("<script>") == 1


def test_without_a_script_the_page_says_and_draws_everything() -> None:
    page = re.sub(r"<script.*?</script>", "", drawn.failing_page(), flags=re.DOTALL)
    for piece in ("OUT OF MEMORY asking for 60.00 MiB", "…/ada/project/model.py:2 forward", "as recorded", "What pins"):
        assert piece in page
    assert re.findall(r'<path class="fill (\w+)"', page) == [
        *("temporary", "activation", "parameter"),
        *("gap", "parameter", "activation", "temporary"),
    ]
    assert 'class="failed"' in page


def test_the_lines_sum_to_what_was_live() -> None:
    found, _ = drawn.explained(drawn.failing())
    table = re.search(r'<table id="sites-1">.*?</table>', drawn.failing_page(), re.DOTALL)
    *rows, total = map(int, re.findall(r'data-bytes="(\d+)"', table[0]))
    assert sum(rows) == total == found.devices[0].failure.bytes


def test_everything_is_escaped() -> None:
    page = drawn.page(drawn.failing(drawn.EVIL), file=f"job/{drawn.EVIL}")
    assert page.count("<script>") == 1
    assert "<script>alert" not in page
    data = re.search(r'<script type="application/json" id="timeline-1">(.*?)</script>', page, re.DOTALL)
    assert any(drawn.EVIL in site for site in json.loads(data[1])["sites"])


@pytest.mark.parametrize("level", ["paths", "source", "all"])
def test_what_is_redacted_is_nowhere_in_the_page(level: str) -> None:
    page = drawn.page(drawn.failing("secret_forward"), file="home/ada/job.pickle", redact=level)
    assert "ada" not in page
    assert ("secret_forward" in page) == (level == "paths")
    assert ("model.py" in page) == (level == "paths")
    assert ("job.pickle" in page) == (level != "all")


@cache
def long() -> tuple[Composition, Bins]:
    """What is live at the peak of a hundred thousand events, and these one by one."""
    snapshot = drawn.long()
    timeline = Timeline.of(snapshot.traces[0], snapshot.segments)
    evidence = categorise(timeline)
    return composition_at(timeline, timeline.peak_event(), evidence), bins_of(timeline, evidence, 1)


def test_a_hundred_thousand_events_and_as_many_blocks_fit_into_a_mebibyte() -> None:
    _, bins = long()
    found, (drawing,) = drawn.explained(drawn.failing())
    page = explain_page(found, [Drawing(bins=bins, plan=drawing.plan)])
    assert len(bins) >= 100_000
    assert '"perBin":1,' in page
    assert len(page.encode()) < MiB
    many = floor_plan(_comb(100_000), lambda row: (found.devices[0].composition.sites[0].site, "activation"))
    assert len(explain_page(found, [Drawing(bins=bins, plan=many)]).encode()) < MiB


@pytest.mark.parametrize(("devices", "per_bin"), [(4, 1), (16, 32)])
def test_so_do_those_of_several_devices_in_coarser_columns(devices: int, per_bin: int) -> None:
    composition, bins = long()
    bins = bins.coarser(per_bin)
    found, (drawing,) = drawn.explained(drawn.failing())
    (device,) = found.devices
    several = [replace(device, index=index, failure=composition) for index in range(devices)]
    page = explain_page(replace(found, devices=tuple(several)), [Drawing(bins=bins, plan=drawing.plan)] * devices)
    assert len(page.encode()) <= MiB
    events = [int(each) for each in re.findall(r'"perBin":(\d+),', page)]
    assert len(events) == devices
    assert all(1 < each < 4096 for each in events)
    assert page.count(" events a column: as it was when most was live") == devices
    for number in range(1, devices + 1):
        table = re.search(rf'<table id="sites-{number}">.*?</table>', page, re.DOTALL)
        *rows, total = map(int, re.findall(r'data-bytes="(\d+)"', table[0]))
        assert sum(rows) == total == composition.bytes
        assert re.search(r"\d further lines", table[0])


def test_many_ranks_with_long_names_fit_as_well() -> None:
    found, drawings = drawn.explained(drawn.failing("void ns::gemm<" + "unsigned, " * 400 + ">"))
    row = RankRow(
        rank=0,
        file="snap",
        device=0,
        events=1,
        failed_bytes=None,
        requested_bytes=1,
        reserved_bytes=1,
        overhead_bytes=0,
        end_requested_bytes=0,
        iterations=0,
        last_time_us=None,
        categories={f"category {number}": 1 for number in range(9)},
    )
    rows = tuple(replace(row, rank=rank) for rank in range(5_000))
    page = explain_page(RankSet(directory="job", rows=rows, stragglers=(), worst=found), drawings)
    assert len(page.encode()) <= MiB
    assert re.search(r"[\d,]+ further ranks, which are better off, are left out", page)


def _comb(blocks: int) -> SegmentMap:
    """Return one segment in which every other block is free."""
    size = 64 * 1024
    (segment, *_) = drawn.failing().segments
    (used, *_) = segment.blocks
    comb = tuple(
        drawn.Block(
            address=index * size, size=size, requested_size=size - 7, state="inactive" if index % 2 else used.state
        )
        for index in range(blocks)
    )
    whole = Segment(**vars(segment) | {"address": 0, "total_size": blocks * size, "blocks": comb})
    rows = {block.address: 0 for block in comb}
    return SegmentMap(event=0, segments=(whole,), row_at=rows, is_known=True, is_exact=True)


DRIVE = """
const figure = document.querySelector("[data-timeline]");
const plot = figure.querySelector(".plot");
const map = document.querySelector(".segments .map");
const found = {};
const range = () => [Number(figure.dataset.from), Number(figure.dataset.to)];
const said = () => figure.querySelector(".readout").textContent;
const press = (key) => plot.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
const point = (target, kind, x, y = 0.5) => {
  const box = target.getBoundingClientRect();
  const where = { clientX: box.left + x * box.width, clientY: box.top + y * box.height, bubbles: true, button: 0 };
  const event = kind === "click" ? new MouseEvent(kind, where) : new PointerEvent(kind, where);
  target.dispatchEvent(event);
};
const button = (name) => figure.querySelector(`button[data-do=${name}]`).click();
const drive = () => {
  found.whole = range();
  found.paths = figure.querySelectorAll("svg path").length;
  button("peak");
  found.peak = { said: said(), range: range(), now: plot.getAttribute("aria-valuenow") };
  button("reset");
  point(plot, "pointerdown", 0.25);
  point(plot, "pointermove", 0.4);
  point(plot, "pointerup", 0.5);
  found.dragged = range();
  button("in");
  found.closer = range();
  press("0");
  point(plot, "pointerdown", 0.1);
  point(plot, "pointerup", 0.1);
  found.held = said();
  press("ArrowRight");
  found.stepped = plot.getAttribute("aria-valuenow");
  button("failure");
  found.failure = said();
  press("Escape");
  button("peak");
  button("in");
  button("in");
  button("magnify");
  found.magnified = [...figure.querySelectorAll(".tick")].map((tick) => tick.textContent);
  figure.querySelector("button.find").click();
  found.rows = document.querySelector("#sites-1 [data-rows]").textContent;
  found.searched = document.querySelector("input[type=search]").value;
  point(map, "pointermove", 0.001, 0.01);
  found.block = document.querySelector(".segments .readout").textContent;
  point(map, "click", 0.9, 0.01);
  point(map, "pointerleave", 0, 0);
  found.tile = document.querySelector(".segments .readout").textContent;
  const note = document.createElement("pre");
  note.id = "found";
  note.textContent = JSON.stringify(found);
  document.body.append(note);
};
const wait = () => (map.getAttribute("role") ? drive() : setTimeout(wait, 20));
wait();
"""


@pytest.mark.browser
@in_a_browser
def test_a_reader_clicks_zooms_and_finds_the_peak(tmp_path: Path) -> None:
    file = tmp_path / "driven.html"
    driven = re.sub(r"<meta http-equiv=[^>]*>", "", drawn.failing_page())
    file.write_text(driven.replace("</body>", f"<script>{DRIVE}</script></body>"), encoding="utf-8")
    done = browse(file, "--virtual-time-budget=8000", "--window-size=1200,1600")
    assert "CONSOLE" not in done.stderr
    seen = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert seen is not None, "the script did not come to its end"
    found = json.loads(html.unescape(seen[1]))
    (device,) = drawn.explained(drawn.failing())[0].devices
    last = device.events - 1
    assert found["whole"] == [0, last]
    assert found["peak"]["now"] == str(device.peak.event)
    assert f"event {device.peak.event}, the peak, held" in found["peak"]["said"]
    assert "+5.00 MiB activation" in found["peak"]["said"]
    assert "…/ada/project/model.py:12 forward" in found["peak"]["said"]
    assert found["dragged"] == pytest.approx([last / 4, last / 2], abs=2)
    low, high = found["closer"]
    assert high - low == pytest.approx((found["dragged"][1] - found["dragged"][0]) / 2, abs=1)
    assert found["held"].startswith("event ")
    assert int(found["stepped"]) == int(re.findall(r"\d+", found["held"])[0]) + 1
    assert "0" not in found["magnified"]
    assert f"event {device.failure.event}, held" in found["failure"]
    assert found["searched"] == "…/ada/project/model.py:12 forward"
    assert found["rows"].startswith("1 of ")
    assert "segment of 20.00 MiB (large)" in found["block"]
    assert "0x" in found["tile"]


@pytest.mark.browser
@in_a_browser
@pytest.mark.parametrize("made", PAGES.values(), ids=PAGES)
def test_the_page_runs_under_its_own_policy(tmp_path: Path, made: Callable[[], str]) -> None:
    page = made()
    file = tmp_path / "report.html"
    file.write_text(page, encoding="utf-8")
    done = browse(file, "--virtual-time-budget=4000")
    assert "CONSOLE" not in done.stderr
    assert done.stdout.count('role="slider" aria-label') == 2
    assert 'class="controls" hidden' not in done.stdout
