"""The words of a page in windows of several widths: none cut off, none on top of another or of a limit's line."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path

import pytest

from oomscope.report.html.bisect import bisect_page
from oomscope.report.html.probe import probe_page
from tests.unit.report import long_searches, results, searches
from tests.unit.report.browser import browse, in_a_browser

WIDTHS = (500, 900, 1400)
LONG = tuple(
    replace(step, label="A subject as long as subjects are that nobody cut") for step in searches.COMMITS.steps
)
PAGES = {
    "out of memory": probe_page(results.OOM, title="t"),
    "fits": probe_page(replace(results.FITS, available_bytes=2**40), title="t"),
    "bisect": bisect_page(replace(searches.COMMITS, steps=LONG), title="t"),
    "thousand commits": bisect_page(long_searches.THOUSAND, title="t"),
    "forty keys": bisect_page(long_searches.FORTY_KEYS, title="t"),
}
LOOK = """
function wordsOf(element) {
  const range = element.ownerDocument.createRange();
  range.selectNodeContents(element);
  return {text: element.textContent, box: range.getBoundingClientRect()};
}
function meet(a, b) {
  return a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
}
function faultsOf(frame) {
  const page = frame.contentDocument, faults = [];
  if (page.documentElement.scrollWidth > frame.clientWidth) faults.push("the page is wider than its window");
  for (const chart of page.querySelectorAll("figure")) {
    const named = ".name, .value, .level-name, .tick, .end, .size, .scale, .key, .number";
    const words = [...chart.querySelectorAll(named)].map(wordsOf);
    const lines = [...chart.querySelectorAll(".bars .level")].map(line => line.getBoundingClientRect());
    words.forEach(({text, box}, index) => {
      if (box.left < 0 || box.right > frame.clientWidth) faults.push(`cut off: ${text}`);
      if (lines.some(line => meet(box, line))) faults.push(`on the line: ${text}`);
      for (const other of words.slice(index + 1)) if (meet(box, other.box)) faults.push(`${text} on ${other.text}`);
    });
  }
  return faults.map(fault => `${frame.title}: ${fault}`);
}
addEventListener("load", () => {
  const frames = [...document.querySelectorAll("iframe")];
  document.querySelector("pre").textContent = [`seen: ${frames.length}`, ...frames.flatMap(faultsOf)].join("\\n");
});
"""


@pytest.mark.browser
@in_a_browser
def test_no_word_of_a_chart_is_cut_off_or_collides(tmp_path: Path) -> None:
    frames = "".join(
        f'<iframe width="{width}" height="900" title="{name} at {width}" srcdoc="{html.escape(page)}"></iframe>'
        for name, page in PAGES.items()
        for width in WIDTHS
    )
    file = tmp_path / "pages.html"
    file.write_text(f"<!doctype html><pre></pre><script>{LOOK}</script>{frames}", encoding="utf-8")
    seen = re.search(r"<pre>(.*?)</pre>", browse(file).stdout, re.DOTALL)
    assert seen is not None
    assert html.unescape(seen[1]).splitlines() == [f"seen: {len(PAGES) * len(WIDTHS)}"]
