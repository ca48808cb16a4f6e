"""The pages in a real browser: readable in both colour schemes, usable by keyboard, and running nothing foreign."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oomscope.report.html.pages import diff_page
from oomscope.units import format_size
from tests.unit.report import differences, drawn, long_searches
from tests.unit.report.browser import browse, driven, in_a_browser
from tests.unit.report.test_pages import EVIL, MAKERS, page_of

pytestmark = [pytest.mark.browser, in_a_browser]
LOOK = """
const contrast = (a, b) => {
  const light = ([red, green, blue]) => [red, green, blue].map((each) => {
    const part = each / 255;
    return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  }).reduce((sum, each, index) => sum + each * [0.2126, 0.7152, 0.0722][index], 0);
  const [high, low] = [light(a), light(b)].sort((x, y) => y - x);
  return (high + 0.05) / (low + 0.05);
};
const colour = (text) => text.match(/[0-9.]+/g).map(Number);
const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
const wordsOf = (element) => {
  const range = element.ownerDocument.createRange();
  range.selectNodeContents(element);
  return {text: element.textContent, box: range.getBoundingClientRect()};
};
function look(frame) {
  const page = frame.contentDocument, view = frame.contentWindow;
  const seen = {title: frame.title};
  const ground = colour(view.getComputedStyle(page.body).backgroundColor);
  seen.dark = ground[0] < 128;
  seen.fetched = view.performance.getEntriesByType("resource").length;
  seen.pale = [...page.querySelectorAll("h1, h2, p, th, td, dt, dd, .key")]
    .filter((each) => contrast(colour(view.getComputedStyle(each).color), ground) < 4.5)
    .map((each) => each.className + ": " + each.textContent.slice(0, 40));
  seen.wide = page.documentElement.scrollWidth > frame.clientWidth;
  seen.collisions = [];
  for (const chart of page.querySelectorAll("figure")) {
    const named = ".level-name, .tick, .end, .point, .dot-name, .size, .key, .number-of";
    const words = [...chart.querySelectorAll(named)].map(wordsOf).filter(({box}) => box.width);
    words.forEach(({text, box}, index) => {
      if (box.left < 0 || box.right > frame.clientWidth) seen.collisions.push(`cut off: ${text}`);
      for (const other of words.slice(index + 1)) {
        const inside = other.text.length < text.length && text.includes(other.text);
        if (!inside && meet(box, other.box)) seen.collisions.push(`${text} on ${other.text}`);
      }
    });
  }
  seen.copies = page.querySelectorAll("button.copy").length - page.querySelectorAll("pre.commands").length;
  const reached = "button:not(:disabled), input:not([hidden]), pre[tabindex], th[data-sort], [role=slider]";
  seen.focusable = [...page.querySelectorAll(reached)].filter((each) => each.offsetParent)
    .every((each) => (each.focus(), page.activeElement === each));
  seen.made = page.querySelectorAll("img[src=x], [onerror]").length;
  seen.ran = view.pwned !== undefined;
  seen.shown = (page.body.textContent + page.title).includes("<img src=x onerror=window.pwned=1>");
  seen.computed = page.body.textContent.includes("49<b x=");
  return seen;
}
addEventListener("load", () => {
  const frames = [...document.querySelectorAll("iframe")];
  document.querySelector("pre").textContent = JSON.stringify(frames.map(look));
});
"""


def looked_at(pages: dict[str, str], folder: Path, *switches: str, width: int = 1100) -> dict[str, dict[str, Any]]:
    """Return what a reader sees of each page, in a frame of its own."""
    frames = "".join(
        f'<iframe width="{width}" height="900" title="{name}" srcdoc="{html.escape(page)}"></iframe>'
        for name, page in pages.items()
    )
    file = folder / "pages.html"
    file.write_text(f"<!doctype html><pre></pre><script>{LOOK}</script>{frames}", encoding="utf-8")
    done = browse(file, *switches)
    assert "CONSOLE" not in done.stderr
    told = re.search(r"<pre>(.*?)</pre>", done.stdout, re.DOTALL)
    assert told is not None
    seen = {each["title"]: each for each in json.loads(html.unescape(told[1]))}
    assert list(seen) == list(pages)
    return seen


def test_a_name_is_seen_as_it_is_written_and_makes_nothing(tmp_path: Path) -> None:
    for seen in looked_at({maker.__name__: maker(EVIL) for maker in MAKERS}, tmp_path).values():
        assert (seen["made"], seen["ran"], seen["shown"], seen["computed"]) == (0, False, True, False), seen["title"]


@pytest.mark.parametrize(("scheme", "width"), [("light", 400), ("light", 1400), ("dark", 1100)])
def test_pages_are_readable_in_both_schemes_and_at_any_width(tmp_path: Path, scheme: str, width: int) -> None:
    names = ("fits", "run", "fails", "grew", "night", "nights", "grid", *long_searches.EVERY)
    prefers = f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}"
    for seen in looked_at({name: page_of(name) for name in names}, tmp_path, prefers, width=width).values():
        assert seen["dark"] is (scheme == "dark")
        assert (seen["title"], seen["pale"]) == (seen["title"], [])
        assert (seen["title"], seen["collisions"], seen["wide"]) == (seen["title"], [], False)
        assert (seen["fetched"], seen["copies"], seen["focusable"]) == (0, 0, True), seen["title"]


SEARCH = """
const table = [...document.querySelectorAll("table")].find((each) => each.textContent.includes("forward"));
const own = document.querySelector(`input[data-table="${table.id}"]`);
own.value = "forward 1";
own.dispatchEvent(new Event("input"));
const [, , difference] = table.querySelectorAll("th[data-sort]");
difference.click();
difference.click();
const shown = [...table.tBodies[0].rows].filter((row) => !row.hidden).map((row) => row.cells[2].textContent.trim());
Object.assign(found, { shown, total: table.tFoot.rows[0].cells[2].textContent, counted: own.nextSibling.textContent });
"""


def test_a_table_is_searched_and_sorted_and_sums_what_it_shows(tmp_path: Path) -> None:
    assert driven(drawn_lines(), SEARCH, tmp_path) == {
        "shown": ["+1.00 MiB", "+10.00 MiB", "+11.00 MiB", "+12.00 MiB"],
        "total": "+34.00 MiB",
        "counted": "4 of 12 rows",
    }


def drawn_lines() -> str:
    """Return a page with one table of twelve lines that grew."""
    from oomscope.report.html.page import render
    from oomscope.report.parts import Table, columns

    rows = [(0, each << 20, each << 20, "activation", f"forward {each}") for each in range(1, 13)]
    table = Table(
        columns=columns("size:A", "size:B", "change:Difference", "category:Category", "code:Line"),
        rows=rows,
        total=(0, 78 << 20, 78 << 20, "", "all"),
    )
    return render([table], title="t")


DRIVE = """
const figure = document.querySelector("[data-timeline]");
const plot = figure.querySelector(".plot");
const map = document.querySelector(".segments .map");
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
const mapSizes = () => Object.fromEntries([...document.querySelectorAll(".segments .key")]
  .map((key) => [key.firstChild.textContent.trim(), key.querySelector(".size").textContent]));
found.whole = range();
found.bands = [...figure.querySelectorAll(".band-row")].map((row) => row.textContent);
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
const slider = document.querySelector("input.moments");
found.moments = Number(slider.max) + 1;
slider.value = 20;
slider.dispatchEvent(new Event("input"));
found.slid = { sizes: mapSizes(), said: said(), event: document.querySelector(".segments").dataset.event };
point(plot, "pointermove", 0.999);
found.followed = mapSizes();
const seek = figure.querySelector("input.seek");
seek.value = "model.py:1[01] ";
seek.dispatchEvent(new Event("input"));
found.sought = figure.querySelector(".found").textContent;
found.marked = document.querySelectorAll(".map path.found[d^=M]").length;
press("n");
found.match = said();
button("incident");
found.incident = said();
button("axis");
found.axis = [...figure.querySelectorAll(".point")].map((each) => each.textContent);
button("axis");
button("failure");
found.failure = said();
press("Escape");
button("peak");
button("in");
button("in");
figure.querySelector("button.find").click();
found.rows = document.querySelector("input[data-table=sites-0]").nextSibling.textContent;
found.searched = document.querySelector("input[data-table=sites-0]").value;
point(map, "pointermove", 0.001, 0.01);
found.block = document.querySelector(".segments .readout").textContent;
point(map, "click", 0.9, 0.01);
point(map, "pointerleave", 0, 0);
found.tile = document.querySelector(".segments .readout").textContent;
"""


def test_a_reader_clicks_zooms_and_finds_the_peak(tmp_path: Path) -> None:
    ready = "document.querySelector('.segments .map').getAttribute('role')"
    found = driven(drawn.failing_page(), DRIVE, tmp_path, ready)
    (device,) = drawn.explained(drawn.failing())[0].devices
    last = device.events - 1
    assert found["whole"] == [0, last]
    assert found["peak"]["now"] == str(device.at_peak.event)
    assert f"event {device.at_peak.event}, the peak, held" in found["peak"]["said"]
    assert "+5.00 MiB activation" in found["peak"]["said"]
    assert "…/ada/project/model.py:12 forward" in found["peak"]["said"]
    assert found["dragged"] == pytest.approx([last / 4, last / 2], abs=2)
    low, high = found["closer"]
    assert high - low == pytest.approx((found["dragged"][1] - found["dragged"][0]) / 2, abs=1)
    assert found["held"].startswith("event ")
    assert int(found["stepped"]) == int(re.findall(r"\d+", found["held"])[0]) + 1
    assert f"event {device.verdict.event}, held" in found["failure"]
    assert found["bands"] == ["iteration0", "microbatch0", "phaseforward"]
    assert found["moments"] == device.events
    shown = device.to_json()["timeline"]
    assert found["slid"]["event"] == "20"
    assert "event 20, the peak, held" in found["slid"]["said"]
    at_event = dict(zip(shown["events"], zip(*shown["categories"].values(), strict=True), strict=True))
    for event, seen in ((20, found["slid"]["sizes"]), (last, found["followed"])):
        named = dict(zip(shown["categories"], at_event[event], strict=True))
        for category in ("parameter", "activation"):
            assert seen[category] == format_size(named[category])
        reserved, used = shown["reserved"][event], sum(-(-size // 512) * 512 for size in named.values())
        assert seen.get("free", format_size(0)) == format_size(reserved - used)
    assert found["marked"] == 1
    trace = drawn.failing().traces[0]
    at_lines = [number for number, stack in enumerate(trace.stacks) if stack and stack[0].line in {10, 11}]
    sought = np.flatnonzero(np.isin(trace.stack_id, at_lines))
    assert found["sought"] == f"{len(sought)} of {device.events} events"
    assert f"event {sought[0]}, held" in found["match"]
    assert "out of memory asking for 60.00 MiB" in found["incident"]
    assert found["axis"][:2] == ["0", "10"]
    assert found["searched"] == "…/ada/project/model.py:12 forward"
    assert found["rows"].startswith("1 of ")
    assert "segment of 20.00 MiB (large)" in found["block"]
    assert "0x" in found["tile"]


COMPARE = """
found.told = [];
for (const key of ["ArrowRight", "ArrowRight", "ArrowLeft"]) {
  const plot = document.querySelector("[data-curves] .plot");
  plot.dispatchEvent(new KeyboardEvent("keydown", { key, shiftKey: key === "ArrowRight" }));
  found.told.push(document.querySelector("[data-curves] .readout").textContent);
}
"""


def test_both_runs_are_read_at_one_place(tmp_path: Path) -> None:
    ready = "document.querySelector('[data-curves] .plot').getAttribute('role')"
    told = driven(diff_page(differences.GREW), COMPARE, tmp_path, ready)["told"]
    timeline = differences.GREW.devices[0].to_json()["timeline"]
    for place, said in zip((20, 40, 39), told, strict=True):
        before, after = timeline["before"][place], timeline["after"][place]
        change = format_size(after - before, signed=True)
        assert said == f"iteration 0 · A {format_size(before)} · B {format_size(after)} · difference {change}"
