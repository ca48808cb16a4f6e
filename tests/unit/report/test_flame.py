"""The flame graph: complete without a script, and in a browser zoomed, searched and compared with what is live."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from oomscope.report.charts.flame import FlameGraph, flame_chart
from oomscope.report.html.pages import bisect_page, diff_page
from oomscope.snapshot.compare.diff import Named, diff
from oomscope.snapshot.trace import Action, Category, Frame, Snapshot
from oomscope.units import MiB
from tests.trace_builder import TraceBuilder
from tests.unit.report import drawn, searches
from tests.unit.report.browser import driven, in_a_browser

MAIN = Frame("/home/ada/project/train.py", 3, "main")


def run(*blocks, shift=0):
    """Return a run of ``blocks``: MiB, line, function, layer, category; ``shift``: lines added above the code."""
    builder = TraceBuilder()
    for number, (size, line, function, layer, category) in enumerate(blocks):
        inner = Frame("/home/ada/project/model.py", line + shift, function)
        module = f"h.{layer}.{function}" if layer is not None else ""
        place = {"stack": (inner, MAIN), "module": module, "category": category}
        builder.event(Action.ALLOC, number << 32, size * MiB, **place)
    builder.event(Action.FREE_REQUESTED, 0, blocks[0][0] * MiB)
    builder.event(Action.FREE_COMPLETED, 0, blocks[0][0] * MiB)
    return Snapshot(segments=(), traces=(builder.build(),))


RUN = run(
    (30, 10, "attention", 0, Category.ACTIVATION),
    (30, 10, "attention", 1, Category.ACTIVATION),
    (40, 20, "mlp", 0, Category.TEMPORARY),
)
GREW = run(
    (30, 10, "attention", 0, Category.ACTIVATION),
    (70, 10, "attention", 1, Category.ACTIVATION),
    (20, 20, "mlp", 0, Category.TEMPORARY),
    shift=4,
)


def live():
    _, (drawing,) = drawn.explained(RUN)
    return drawing.live


def cells_of(chart):
    """Return depth, left edge, width and text of each frame of a picture."""
    found = []
    for cell in ET.fromstring(str(chart)).iter("div"):
        if (cell.get("class") or "").startswith("cell "):
            style = dict(each.split(":") for each in cell.get("style").split(";"))
            numbers = [float(re.sub("[a-z%]", "", style[name])) for name in ("top", "left", "width")]
            found.append((*numbers, cell.text))
    return found


def test_the_picture_is_complete_without_a_script():
    assert cells_of(flame_chart(FlameGraph.of(live()), "flame", table="")) == [
        (0, 0, 100, "all"),
        (20, 0, 100, "main train.py:3"),
        (40, 0, 60, "attention model.py:10"),
        (40, 60, 40, "mlp model.py:20"),
    ]


def test_of_two_runs_a_frame_is_as_wide_as_in_the_larger_and_says_which_one_that_is():
    (device,) = diff(Named("a", RUN), Named("b", GREW)).devices
    chart = flame_chart(FlameGraph.of(device.stacks, is_difference=True), "flame", table="")
    assert [row[3] for row in cells_of(chart)] == [
        *("all", "main train.py:3", "attention model.py:14", "mlp model.py:24")
    ]
    (_, _, grown, _), (_, _, shrunk, _) = cells_of(chart)[2:]
    assert grown == pytest.approx(100 * 100 / 140, abs=0.01)
    assert shrunk == pytest.approx(100 * 40 / 140, abs=0.01)
    assert re.findall(r'class="cell (\w+)"', str(chart)) == ["grew", "grew", "grew", "shrank"]


def test_what_is_too_small_stays_in_its_parent():
    graph = FlameGraph.of(live()).pruned(3)
    assert [node.frame.name for node in graph.trees["stack"]] == ["all", "main", "attention"]
    assert graph.trees["stack"][0].bytes[0] == 100 * MiB


TOOLS = """
const figure = document.querySelector("[data-flame]");
const cells = figure.querySelector(".cells");
const drawn = () => [...cells.children].map((cell) => `${cell.textContent} ${cell.style.width}`);
const cell = (text) => [...cells.children].find((each) => each.textContent.startsWith(text));
const button = (text) => [...figure.querySelectorAll("button")].find((each) => each.textContent === text);
const point = (target, kind) => target.dispatchEvent(new PointerEvent(kind, { bubbles: true }));
const press = (key) => cells.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
const said = () => figure.querySelector(".readout").textContent;
const search = (text) => {
  const box = figure.querySelector("input[type=search]");
  box.value = text;
  box.dispatchEvent(new Event("input"));
  return [figure.querySelector("output").textContent, cells.querySelectorAll(".found").length];
};
"""
READY = "document.querySelector('[data-flame] .cells').getAttribute('role')"

EXPLORE = """
found.buttons = [...figure.querySelectorAll("button")].map((each) => each.textContent);
found.whole = drawn();
point(cell("mlp"), "pointermove");
found.pointed = said();
point(cell("mlp"), "click");
found.zoomed = drawn();
button("Whole graph").click();
found.searched = search("attention");
found.wrong = search("(");
search("");
button("By module").click();
found.modules = drawn();
button("By category").click();
found.categories = drawn();
button("At the end").click();
found.end = drawn();
button("By call").click();
press("ArrowDown");
press("ArrowDown");
found.stepped = said();
press("Enter");
found.entered = drawn();
figure.querySelector("button.find").click();
found.rows = document.querySelector("input[data-table=sites-0]").nextSibling.textContent;
found.stack = [...document.querySelectorAll("#sites-0 .stack li")].map((each) => each.textContent);
"""


@pytest.mark.browser
@in_a_browser
def test_a_reader_zooms_searches_and_chooses(tmp_path: Path) -> None:
    found = driven(drawn.page(RUN), TOOLS + EXPLORE, tmp_path, READY)
    assert found["buttons"][:5] == ["By call", "By module", "By category", "At the peak", "At the end"]
    assert found["whole"] == ["all 100%", "main train.py:3 100%", "attention model.py:10 60%", "mlp model.py:20 40%"]
    assert found["pointed"] == ("40.00 MiB (40.0 %) in 1 block, mostly temporary · …/ada/project/model.py:20 mlp")
    assert sorted(found["zoomed"]) == ["all 100%", "main train.py:3 100%", "mlp model.py:20 100%"]
    assert found["searched"] == ["1 frame, 60.00 MiB of 100.00 MiB", 1]
    assert found["wrong"] == ["not a regular expression", 0]
    assert [row for row in found["modules"] if row.startswith(("h.", "att", "mlp"))][:2] == [
        "h.* 100%",
        "attention 60%",
    ]
    assert found["categories"][1] == "activation 60%"
    assert found["end"][0] == "all 100%"
    (device,) = drawn.explained(RUN)[0].devices
    assert device.end.requested_bytes == 70 * MiB
    assert f"{40 / 70:.0%}"[:2] in next(row for row in found["end"] if row.startswith("temporary"))
    assert found["stepped"].startswith("30.00 MiB (42.9 %)") or found["stepped"].startswith("40.00 MiB (57.1 %)")
    assert len(found["entered"]) == 3
    assert found["rows"].startswith("1 of ")
    assert "…/ada/project/train.py:3 main" in found["stack"]


@pytest.mark.browser
@in_a_browser
def test_a_reader_sees_what_grew_between_two_runs(tmp_path: Path) -> None:
    page = diff_page(diff(Named("a", RUN), Named("b", GREW)))
    steps = """
    point(cell("attention"), "pointermove");
    found.grown = said();
    found.tones = [...cells.children].map((each) => each.className.trim());
    button("A").click();
    found.first = drawn();
    """
    found = driven(page, TOOLS + steps, tmp_path, READY)
    assert found["grown"] == "+40.00 MiB, 60.00 MiB → 100.00 MiB · …/ada/project/model.py:14 attention"
    assert found["tones"] == ["cell grew", "cell grew", "cell grew here", "cell shrank"]
    assert found["first"][2:] == ["attention model.py:14 60%", "mlp model.py:24 40%"]


def test_the_page_of_a_search_lays_the_last_good_peak_against_the_first_bad_one():
    def measured(evidence, snapshot):
        peak = replace(evidence.result.peak, stacks=drawn.explained(snapshot)[1][0].live)
        return replace(evidence, result=replace(evidence.result, peak=peak, demand_peak=None))

    both = {
        "last_good": measured(searches.COMMITS.last_good, RUN),
        "first_bad": measured(searches.COMMITS.first_bad, GREW),
    }
    page = bisect_page(replace(searches.COMMITS, **both), title="t")
    assert "Live bytes by stack, as a difference" in page
    assert re.findall(r'class="cell (\w+)"', page) == ["grew", "grew", "grew", "shrank"]
    assert "attention model.py:14" in page
