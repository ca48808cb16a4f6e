"""The page of a search: whole without a script, harmless whatever a subject says, small, and usable by keyboard."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from oomscope.bisect.results.noise import Posterior
from oomscope.bisect.results.sections import StepsWanted
from oomscope.cli.main import run
from oomscope.report.html.bisect import bisect_page, charts_of
from oomscope.units import GiB, MiB
from tests.unit.bisect.worlds import World
from tests.unit.report import long_searches, searches
from tests.unit.report.browser import browse, in_a_browser
from tests.unit.report.html.test_html import Balance

RESULTS = {**long_searches.EVERY, **{f"short {index}": result for index, result in enumerate(searches.EVERY)}}


@cache
def page_of(name: str) -> str:
    return bisect_page(RESULTS[name], title="t")


@pytest.mark.parametrize("name", RESULTS)
def test_the_page_is_well_formed_fetches_nothing_and_runs_only_its_own_script(name: str) -> None:
    page = page_of(name)
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    assert not re.search(r"""(src|href)\s*=|@import|url\(|https?://""", page)
    assert "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-" in page
    assert page.count("<script>") == 1
    assert not set("\x1b\u202e\udcff") & set(page)


def test_without_a_script_the_page_says_everything() -> None:
    page = re.sub(r"<script.*?</script>", "", bisect_page(searches.COMMITS, title="tinytrain"), flags=re.DOTALL)
    for piece in (
        "CULPRIT FOUND: dddddddddd keep the logits",
        "Ada Reyes",
        "8 commits up to bbbbbbbbbb longer",
        "the request that failed",
        "all requested bytes",
        "git clone --shared repo copy\noomscope probe 1",
        "import: No module named",
        "expandable_segments:True",
    ):
        assert piece in page


@pytest.mark.parametrize(
    ("name", "headings"),
    [
        ("commits", ["The range", "Inside the commit", "Steps from good to bad", "Both runs over each other"]),
        ("environment", ["What each probe changed", "Keys, variables and packages", "Both runs over each other"]),
        ("both", ["The range", "Code and configuration", "Inside the commit"]),
        ("short 1", ["One of these is at fault", "Steps from good to bad"]),
    ],
)
def test_each_axis_has_its_sections(name: str, headings: list[str]) -> None:
    found = re.findall(r"<h2>(.*?)</h2>", page_of(name))
    assert set(headings) <= set(found)
    if not name.startswith("short"):
        assert {"Requested bytes that differ, by line", "To repeat the first bad probe", "Probes"} <= set(found)


def test_lines_and_categories_sum_to_the_change() -> None:
    page = page_of("commits")
    table = re.search(r'<table id="lines">.*?</table>', page, re.DOTALL)
    changes = [int(each) for each in re.findall(r'data-bytes="(-?\d+)" data-signed', table[0])]
    assert sum(changes[:-1]) == changes[-1] == 2 * GiB


def test_many_lines_are_one_row_and_still_sum() -> None:
    site = searches.SITES[0].site
    rows = [replace(searches.SITES[0], site=replace(site, line=line, function="f" * 300)) for line in range(9000)]
    page = bisect_page(replace(long_searches.THOUSAND, sites=tuple(rows)), title="t")
    assert len(page.encode()) < MiB
    table = re.search(r'<table id="lines">.*?</table>', page, re.DOTALL)
    changes = [int(each) for each in re.findall(r'data-bytes="(-?\d+)" data-signed', table[0])]
    assert sum(changes[:-1]) == changes[-1] == 9000 * 2 * GiB
    assert re.search(r"\d,\d{3} further lines", table[0])


def test_everything_of_a_search_is_escaped() -> None:
    evil = "<script>alert('x')</script>"
    result = replace(
        searches.COMMITS,
        culprit=replace(searches.COMMITS.culprit, subject=evil, author=evil, date=evil),
        probes=tuple(replace(probe, subject=evil, reason=evil) for probe in searches.PROBES),
        suspects=tuple(replace(suspect, subject=evil, reason=evil) for suspect in searches.SUSPECTS.suspects),
        steps=tuple(replace(step, label=evil) for step in searches.COMMITS.steps),
        last_good=replace(searches.COMMITS.last_good, commands=(evil,)),
        message=evil,
        notes=(evil,),
        bad_class=evil,
        sites=tuple(replace(row, category=evil) for row in searches.SITES),
    )
    page = bisect_page(result, title=evil)
    assert page.count("<script>") == 1
    assert "<script>alert" not in page
    keys = tuple(replace(change, key=evil, good=evil, bad=evil) for change in searches.KEYS.culprit.keys)
    page = bisect_page(replace(searches.KEYS, culprit=replace(searches.KEYS.culprit, keys=keys)), title="t")
    assert "<script>alert" not in page


@pytest.mark.parametrize("commits", [1000, 20_000])
def test_long_histories_fit_into_a_mebibyte(commits: int) -> None:
    page = bisect_page(long_searches.thousand_commits(commits, culprit=commits // 3 * 2), title="t")
    assert len(page.encode()) < MiB
    data = json.loads(re.search(r'id="range-1">(.*?)</script>', page, re.DOTALL)[1])
    assert data["count"] == commits + 1
    assert sum(length for _, length in data["standings"]) == commits + 1
    assert set(data["answers"]) <= set(data["names"]), "what was probed has a name"
    assert str(data["culprit"]) in data["names"]


def test_a_posterior_is_a_bar_for_each_probable_candidate() -> None:
    (line,) = long_searches.THOUSAND.lines
    chances = dict.fromkeys(range(720, 740), 0.02) | {734: 0.6}
    rows = tuple((place.commit, chances.get(at, 0.0)) for at, place in enumerate(line.places) if at)
    posterior = Posterior(
        rows=rows,
        none=0.01,
        already=0.01,
        confidence=0.6,
        wanted=0.9,
    )
    result = replace(long_searches.THOUSAND, posterior=posterior)
    chart = charts_of(result)["posterior"]
    assert chart.count('class="row"') == 16 + 1 + 2
    assert re.search(r"60 %", chart)
    assert "none: the bad end is good" in chart
    assert "The probabilities hold where" in bisect_page(result, title="t")


def test_a_search_that_was_really_made_is_shown_with_what_a_merge_brought(tmp_path: Path) -> None:
    world = World(tmp_path)
    good = world.repo.commit("main 0", {"size.txt": "500", "other": "0"})
    world.repo.git("checkout", "--quiet", "-b", "side")
    for size in (505, 1200):
        world.repo.commit(f"side {size} <i>", {"size.txt": str(size)})
    world.repo.git("checkout", "--quiet", "main")
    world.repo.commit("main 1", {"other": "1"})
    merge = world.repo.merge("side", "merge side")
    result = world.bisect(good, steps=StepsWanted())
    page = bisect_page(result, title="t")
    assert f"<h2>What {merge[:10]} merged</h2>" in page
    assert page.count('class="range"') == 2
    assert f"(merged by {merge[:10]})" in page
    assert ">at fault<" in page
    assert "side 1200 &lt;i&gt;" in page
    assert f"<dt>Begun</dt><dd>{result.cost.begun} runs</dd>" in page


def test_the_command_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    harness = tmp_path / "harness.py"
    harness.touch()
    monkeypatch.setattr(
        "oomscope.bisect.commit_bisect.bisect_commits", lambda request, *, reporter: long_searches.THOUSAND
    )
    file = tmp_path / "page.html"
    assert run(["bisect", "v1..v2", "--harness", str(harness), "--html", str(file)]) == 0
    assert "<h2>The range</h2>" in file.read_text(encoding="utf-8")
    assert f"Wrote {file}" in capsys.readouterr().err


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
function look(frame) {
  const page = frame.contentDocument, view = frame.contentWindow;
  const seen = {title: frame.title, headings: [...page.querySelectorAll("h2")].map((each) => each.textContent)};
  const ground = colour(view.getComputedStyle(page.body).backgroundColor);
  seen.fetched = view.performance.getEntriesByType("resource").map((each) => each.name);
  seen.dark = ground[0] < 128;
  seen.pale = [...page.querySelectorAll("h1, h2, p, th, td, dt, dd, .label, .size, .key")]
    .filter((each) => contrast(colour(view.getComputedStyle(each).color), ground) < 4.5)
    .map((each) => each.className + ": " + each.textContent.slice(0, 40));
  seen.copies = page.querySelectorAll("button.copy").length;
  seen.commands = page.querySelectorAll("pre.commands").length;
  seen.injected = page.querySelectorAll("main b, main script:not([type])").length;
  const reached = "button, input:not([hidden]), pre[tabindex], th[data-sort], [role=slider]";
  seen.focusable = [...page.querySelectorAll(reached)]
    .every((each) => (each.focus(), page.activeElement === each));
  const slider = page.querySelector("[role=slider]");
  if (slider) {
    const press = (key) => slider.dispatchEvent(new view.KeyboardEvent("keydown", {key, bubbles: true}));
    const at = () => Number(slider.getAttribute("aria-valuenow"));
    seen.steps = [at()];
    for (const key of ["ArrowRight", "ArrowLeft", "PageUp", "PageDown", "Home", "End", "Escape"]) {
      press(key);
      seen.steps.push(at());
    }
    seen.said = page.querySelector(".readout").textContent;
  }
  const box = page.getElementById("probes").closest("section").querySelector("input");
  box.value = "probe-that-is-not-there";
  box.dispatchEvent(new view.Event("input"));
  seen.filtered = page.querySelector("#probes [data-rows]").textContent;
  return seen;
}
addEventListener("load", () => {
  const frames = [...document.querySelectorAll("iframe")];
  document.querySelector("pre").textContent = JSON.stringify(frames.map(look));
});
"""


@pytest.mark.browser
@in_a_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_in_a_browser_and_obeys_the_keyboard(tmp_path: Path, scheme: str) -> None:
    frames = "".join(
        f'<iframe width="1100" height="900" title="{name}" srcdoc="{html.escape(page_of(name))}"></iframe>'
        for name in long_searches.EVERY
    )
    file = tmp_path / "pages.html"
    file.write_text(f"<!doctype html><pre></pre><script>{LOOK}</script>{frames}", encoding="utf-8")
    prefers = f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}"
    done = browse(file, prefers)
    assert "CONSOLE" not in done.stderr
    text = re.search(r"<pre>(.*?)</pre>", done.stdout, re.DOTALL)
    pages = {seen["title"]: seen for seen in json.loads(html.unescape(text[1]))}
    assert set(pages) == set(long_searches.EVERY)
    for seen in pages.values():
        assert seen["dark"] is (scheme == "dark")
        assert seen["pale"] == []
        assert seen["fetched"] == []
        assert (seen["copies"], seen["commands"]) == (2, 2)
        assert seen["injected"] == 0
        assert seen["focusable"]
        assert seen["filtered"].startswith("0 of ")
    commits = pages["commits"]
    probed = sorted({0, 1000, *(long_searches.place_of(probe) for probe in long_searches.THOUSAND.probes)})
    before = probed[probed.index(734) - 1]
    assert commits["steps"] == [734, 735, 734, before, 734, 0, 1000, 734]
    assert commits["said"].startswith("734 of 1,000, at fault · ")
    assert "probe 8: bad" in commits["said"]
