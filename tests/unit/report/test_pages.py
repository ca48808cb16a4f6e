"""The pages: whole without a script, offline, small, and harmless whatever the names on them say."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest

from oomscope.bisect.results.result import CommitCulprit
from oomscope.bisect.results.sections import StepsWanted
from oomscope.gate.ledger.history import Trend, trends
from oomscope.gate.ledger.ledger import Point
from oomscope.gate.night.compare import compare_metric
from oomscope.gate.night.result import CaseResult, Culprit, GrownLine, MeasuredCommit
from oomscope.gate.night.status import GRAVITY, Status
from oomscope.gate.suite.identity import Series
from oomscope.gate.suite.metrics import EXACT
from oomscope.probe.tuning.sweep import Axis, Sweep
from oomscope.report.html import page as page_size
from oomscope.report.html.pages import (
    bisect_page,
    diff_page,
    explain_page,
    history_page,
    night_page,
    probe_page,
    sweep_page,
)
from oomscope.snapshot.accounting.attribution import by_stack, moments_shown
from oomscope.snapshot.accounting.stack_tree import LiveStacks
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.compare.diff import Named, diff
from oomscope.snapshot.explain.composition import Composition, composition_at
from oomscope.snapshot.explain.curves import Bins, bins_of
from oomscope.snapshot.explain.drawing import Drawing, floor_plan
from oomscope.snapshot.explain.rank_set import RankRow, RankSet
from oomscope.snapshot.infer.categorise import categorise
from oomscope.snapshot.replay.segment_map import SegmentMap
from oomscope.snapshot.trace import Category, Segment
from oomscope.units import Bytes, GiB, MiB
from tests.unit.bisect.worlds import World
from tests.unit.gate.nights import case_result, night
from tests.unit.report import differences, drawn, long_searches, results, searches
from tests.unit.report.test_other_reports import row

VOID = {"meta", "br", "hr", "img", "input", "link"}
EVIL = '"\'><img src=x onerror=window.pwned=1></script><script>window.pwned=1</script>{{7*7}}<b x="'
CONTROL = "\x1b[31m\u202egnp.exe\udcff"


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


def probed(name: str) -> str:
    site = replace(results.MLP, file=f"/{name}.py", function=name, module=name)
    sites = tuple(replace(each, site=site, category=name) for each in results.SITES)
    peak = replace(results.PEAK, site=site, sites=sites, phase=name, categories={name: 1})
    fixes = tuple(replace(fix, name=name, note=name) for fix in results.FRAGMENTATION.tried)
    gaps = (replace(results.FRAGMENTATION.gaps[0], text=name),)
    verdict = replace(results.FRAGMENTATION, headline=name, cured_by=(name,), gaps=gaps, tried=fixes)
    result = replace(results.OOM, peak=peak, verdict=verdict, gpu=name, notes=(name,), versions={name: name})
    return probe_page(result, title=name)


def failed(name: str) -> str:
    failure = replace(results.BROKEN.failure, message=name, detail=name)
    return probe_page(replace(results.BROKEN, failure=failure), title=name)


def explained(name: str) -> str:
    return drawn.page(drawn.failing(name), file=name)


def compared(name: str) -> str:
    before, after = (
        differences.snapshot(((size, 1, name, Category.ACTIVATION),), file=f"/{name}.py") for size in (9, 8)
    )
    return diff_page(diff(Named(name, before), Named(name, after)))


def searched(name: str) -> str:
    found = searches.COMMITS
    assert isinstance(found.culprit, CommitCulprit)
    result = replace(
        found,
        culprit=replace(found.culprit, subject=name, author=name, date=name),
        probes=tuple(replace(each, subject=name, reason=name) for each in found.probes),
        suspects=tuple(replace(each, subject=name, reason=name) for each in searches.SUSPECTS.suspects),
        steps=tuple(replace(step, label=name) for step in found.steps),
        last_good=replace(found.last_good, commands=(name,)),
        message=name,
        notes=(name,),
        bad_class=name,
        sites=tuple(replace(each, category=name) for each in found.sites),
    )
    return bisect_page(result, title=name)


def varied(name: str) -> str:
    rows = (row((name,), "fits", 3 * GiB, 0.1), row(("none",), "oom", 5 * GiB, None))
    return sweep_page(Sweep(axes=(Axis("recompute", (name, "none")),), rows=rows, available_bytes=4 * GiB), title=name)


def red(text: str = "Grow", name: str = "tiny") -> CaseResult:
    """A case that went out of memory, and whose commit it was."""
    grown = (GrownLine(site=replace(results.LOSS, file=f"{text}.py"), category="activation", delta_bytes=MiB),)
    culprit = Culprit(
        outcome="culprit",
        message="",
        good="a" * 40,
        commit="c" * 40,
        subject=text,
        author=text,
        verdict=f"Verdict {text}",
        grown=grown,
        commands=(f"oomscope probe {text}",),
    )
    compared_row = compare_metric("peak_requested", GiB, GiB + MiB, EXACT)
    case = replace(case_result(1, Status.WORSE, name=name), rows=(compared_row,), outcome="oom", probe=results.OOM)
    standing = MeasuredCommit(commit="c" * 40, subject=text, dirty=True)
    return replace(case, culprit=culprit, reason=f"out of memory {text}", notes=(text,), standing=standing)


def judged(name: str) -> str:
    return night_page(replace(night(1, red(name, name=name), case_result(1)), suite=f"/{name}.yaml"))


SERIES = Series(suite="ci/memory.yaml", repository="group/project")


def point(number: int, case: CaseResult) -> Point:
    started = f"2026-01-{number:02}T02:00:00+00:00"
    return Point(night=f"n{number}", started=started, series=SERIES, case=case)


def followed(name: str) -> str:
    points = [point(1, case_result(1)), point(2, red(name, name="tiny"))]
    return history_page(trends(points, "peak_requested"), metric="peak_requested")


def hourly() -> str:
    """Runs of one day, so that the axis names hours, of which the last grew."""
    points = [point(at, case_result(at, live=(2 if at < 6 else 3) * GiB)) for at in range(1, 7)]
    points = [replace(each, started=f"2026-01-01T0{at}:00:00+00:00") for at, each in enumerate(points)]
    return history_page(trends(points, "peak_requested"), metric="peak_requested")


MAKERS: tuple[Callable[[str], str], ...] = (*(probed, failed, explained, compared, searched, varied, judged, followed),)
PAGES: dict[str, Callable[[], str]] = {
    "fits": lambda: probe_page(results.FITS, title="t"),
    "run": lambda: probe_page(results.CONFIRMED, title="t"),
    "broken": lambda: probe_page(results.BROKEN, title="t"),
    "fails": drawn.failing_page,
    "redacted": lambda: drawn.page(drawn.failing(), redact="all"),
    "grew": lambda: diff_page(differences.GREW),
    "two devices": lambda: diff_page(differences.TWO_DEVICES),
    **{name: lambda found=found: bisect_page(found, title="t") for name, found in long_searches.EVERY.items()},
    **{f"search {at}": lambda found=found: bisect_page(found, title="t") for at, found in enumerate(searches.EVERY)},
    "night": lambda: night_page(
        night(1, *(replace(case_result(1, each, name=str(each)), probe=results.FITS) for each in GRAVITY), red())
    ),
    "nights": hourly,
    "grid": lambda: varied("mlp+core_attn"),
}


@cache
def page_of(name: str) -> str:
    return PAGES[name]()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_well_formed_fetches_nothing_and_runs_only_its_own_script(name: str) -> None:
    page = page_of(name)
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    assert page.startswith("<!doctype html>")
    assert not re.search(r"""(src|href)\s*=|@import|url\(|https?://""", page)
    assert "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-" in page
    assert page.count("<script>") == 1
    assert "prefers-color-scheme: dark" in page


@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.__name__)
def test_no_page_holds_a_name_as_it_is_written(maker: Callable[[str], str]) -> None:
    page = maker(EVIL)
    assert page.count("<script>") == 1
    assert "<img src=x" not in page
    assert "&lt;img src=x" in page
    if maker is not explained:  # the trace refuses what is no text
        assert not set("\x1b\u202e\udcff") & set(maker(CONTROL))


def test_without_a_script_a_page_says_what_the_terminal_says() -> None:
    pages = {name: re.sub(r"<script.*?</script>", "", page_of(name), flags=re.DOTALL) for name in PAGES}
    for name, pieces in {
        "run": (
            *("OUT OF MEMORY asking for 1.50 GiB", "<th>By</th>", "ran to the end", "model.py:88"),
            *("failed in optimizer of iteration 2", "not run, beyond the limits of number and time"),
        ),
        "fails": ("OUT OF MEMORY asking for 60.00 MiB", "…/ada/project/model.py:2 forward", "as recorded", "What pins"),
        "search 0": (
            *("CULPRIT FOUND: dddddddddd keep the logits", "Ada Reyes", "8 commits up to bbbbbbbbbb longer"),
            *("the request that failed", "git clone --shared repo copy\noomscope probe 1"),
            *("import: No module named", "expandable_segments:True"),
        ),
        "commits": ("The range", "At fault: 2 hunks of 41 in this commit", "Both runs over each other", "Probes"),
        "environment": ("What each probe changed", "Keys, variables and packages"),
        "both": ("Code and configuration", "Keys of conf/train.yaml that contribute"),
        "search 1": ("One of these is at fault", "Steps seen on the way"),
        "night": ("NOT GREEN", "cccccccccc", "Verdict Grow", "Grow.py:", "fix it, or accept it"),
        "grew": ("THE PEAK GREW by 134.00 MiB", "Requested memory over the iterations", "model.py:40 loss (new)"),
    }.items():
        for piece in pieces:
            assert piece in pages[name], (name, piece)
    assert "<th>By</th>" not in page_of("fits")
    assert re.findall(r'<path class="fill (\w+)"', pages["fails"]) == [
        *("temporary", "activation", "parameter"),
        *("gap", "parameter", "activation", "temporary"),
    ]
    assert 'class="failed"' in pages["fails"]


def sums(page: str, table: str, attribute: str = "data-bytes") -> tuple[list[int], int]:
    """Return the first numbers of the rows of a table, and that of its last row."""
    found = re.search(rf'<table id="{table}">.*?</table>', page, re.DOTALL)
    assert found is not None
    rows = [re.search(rf'{attribute}="(-?\d+)"', each) for each in found[0].split("<tr")[2:]]
    numbers = [int(each[1]) for each in rows if each is not None]
    return numbers[:-1], numbers[-1]


def test_the_lines_of_a_page_sum_to_its_answer() -> None:
    rows, total = sums(page_of("fails"), "sites-0")
    assert sum(rows) == total == drawn.explained(drawn.failing())[0].devices[0].failure.bytes
    rows, total = sums(page_of("commits"), "lines")
    assert sum(rows) == total == 2 * GiB
    for name in ("grew", "two devices"):
        tables = re.findall(r"<h2>Requested at the peak, by .*?</table>", page_of(name), re.DOTALL)
        assert len(tables) >= 3
        assert all(re.search(r"<tfoot>.*>all<", table, re.DOTALL) for table in tables)


def test_green_is_called_green_and_red_is_not() -> None:
    assert '<p class="status good">GREEN' in night_page(night(1))
    for status in GRAVITY:
        found = night(1, case_result(1, status))
        assert ('class="status bad"' in night_page(found)) == (found.exit_code != 0)


@pytest.mark.parametrize("level", ["paths", "source", "all"])
def test_what_is_redacted_is_nowhere_in_the_page(level: str) -> None:
    page = drawn.page(drawn.failing("secret_forward"), file="home/ada/job.pickle", redact=level)
    assert "ada" not in page
    assert ("secret_forward" in page) == (level == "paths")
    assert ("model.py" in page) == (level == "paths")
    assert ("job.pickle" in page) == (level != "all")


def test_a_search_that_was_really_made_is_shown_with_what_a_merge_brought(tmp_path: Path) -> None:
    world = World(tmp_path)
    good = world.repo.commit("main 0", {"size.txt": "500", "other": "0"})
    world.repo.git("checkout", "--quiet", "-b", "side")
    for size in (505, 1200):
        world.repo.commit(f"side {size} <i>", {"size.txt": str(size)})
    world.repo.git("checkout", "--quiet", "main")
    world.repo.commit("main 1", {"other": "1"})
    merge = world.repo.merge("side", "merge side")
    page = bisect_page(world.bisect(good, steps=StepsWanted()), title="t")
    assert f"<h2>What {merge[:10]} merged</h2>" in page
    assert page.count('<figure class="range"') == 2
    assert f"(merged by {merge[:10]})" in page
    assert "side 1200 &lt;i&gt;" in page


@cache
def long() -> tuple[Composition, Bins, LiveStacks]:
    """What is live at the peak of a hundred thousand events, these one by one, and the stacks that are live."""
    snapshot = drawn.long()
    timeline = Timeline.of(snapshot.traces[0], snapshot.segments)
    evidence = categorise(timeline)
    live = by_stack(timeline, moments_shown(timeline), evidence.category)
    return composition_at(timeline, timeline.peak_event(), evidence), bins_of(timeline, evidence, 1), live


def test_a_hundred_thousand_events_and_many_blocks_fit_into_a_mebibyte() -> None:
    _, bins, live = long()
    found, (drawing,) = drawn.explained(drawn.failing())
    page = explain_page(found, [Drawing(bins=bins, plan=drawing.plan, live=live)])
    assert len(bins) >= 100_000
    assert '"perBin":1,' in page
    assert len(page.encode()) < MiB
    many = floor_plan(_comb(30_000), lambda row: (found.devices[0].composition.sites[0].site, "activation"))
    assert len(explain_page(found, [Drawing(bins=bins, plan=many, live=live)]).encode()) < MiB


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


def test_several_devices_fit_in_coarser_columns() -> None:
    composition, bins, live = long()
    found, (drawing,) = drawn.explained(drawn.failing())
    (device,) = found.devices
    several = [replace(device, index=index, failure=composition) for index in range(4)]
    page = explain_page(replace(found, devices=tuple(several)), [Drawing(bins=bins, plan=drawing.plan, live=live)] * 4)
    assert len(page.encode()) <= MiB
    events = [int(each) for each in re.findall(r'"perBin":(\d+),', page)]
    assert len(events) == 4
    assert all(1 < each < 4096 for each in events)
    assert page.count(" events a column: as it was when most was live") == 4
    for number in range(4):
        rows, total = sums(page, f"sites-{number}")
        assert sum(rows) == total == composition.bytes


def test_many_ranks_with_long_names_fit_as_well() -> None:
    found, drawings = drawn.explained(drawn.failing("void ns::gemm<" + "unsigned, " * 400 + ">"))
    one = RankRow(
        rank=0,
        file="snap",
        device=0,
        events=1,
        failed_bytes=None,
        peak=Bytes(requested_bytes=1, reserved_bytes=1),
        overhead_at_peak_bytes=0,
        end_requested_bytes=0,
        iterations=0,
        last_time_us=None,
        categories={f"category {number}": 1 for number in range(9)},
    )
    rows = tuple(replace(one, rank=rank) for rank in range(5_000))
    page = explain_page(RankSet(directory="job", rows=rows, stragglers=(), worst=found), drawings)
    assert len(page.encode()) <= MiB
    assert re.search(r"[\d,]+ further rows", page)


def test_many_devices_lines_and_modules_of_a_difference_fit_and_sum() -> None:
    (device,) = differences.GREW.devices
    (line, *_), (module, *_) = device.lines, device.modules
    lines = tuple(replace(line, site=replace(line.site, function="f" * 80, line=number)) for number in range(2_000))
    modules = tuple(replace(module, name=f"layers.{number}.mlp") for number in range(2_000))
    several = [replace(device, rank=rank, lines=lines, modules=modules) for rank in range(12)]
    page = diff_page(replace(differences.GREW, devices=tuple(several)))
    assert len(page.encode()) <= MiB
    assert len(re.findall(r"[\d,]+ further lines", page)) == 8
    assert "4 further ones, which grew less, have no section" in page
    table = next(each for each in re.findall(r"<table.*?</table>", page, re.DOTALL) if "further lines" in each)
    after = [int(each) for each in re.findall(r'<tr>\s*<td class="number" data-bytes="(\d+)"', table)]
    assert sum(after[:-1]) == after[-1] == 2_000 * line.before_bytes


def test_long_histories_fit_into_a_mebibyte() -> None:
    page = bisect_page(long_searches.thousand_commits(20_000, culprit=13_000), title="t")
    assert len(page.encode()) < MiB
    assert '<span class="run culprit"' in page
    site = searches.SITES[0].site
    rows = [replace(searches.SITES[0], site=replace(site, line=line, function="f" * 300)) for line in range(9000)]
    page = bisect_page(replace(long_searches.THOUSAND, sites=tuple(rows)), title="t")
    changes, total = sums(page, "lines")
    assert sum(changes) == total == 9000 * 2 * GiB
    assert re.search(r"\d,\d{3} further lines", page)


def test_the_page_of_a_large_suite_is_small() -> None:
    page = night_page(night(1, *(red(name=f"case {number}") for number in range(300))))
    assert len(page.encode()) <= MiB
    assert "300 worse" in page
    assert "not as expected: the JSON document has the evidence" in page


def found_trend(label: str, *cases: CaseResult) -> Trend:
    (trend,) = trends([point(at, case) for at, case in enumerate(cases, start=1)], "peak_requested")
    return replace(trend, label=label)


def test_a_page_of_trends_begins_with_what_is_worse_and_keeps_the_youngest_nights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calm = found_trend("calm", case_result(1))
    worse = found_trend("grown", case_result(1), case_result(2, Status.WORSE, live=GiB + MiB))
    page = history_page([calm, worse], metric="peak_requested")
    assert re.findall(r"<h2>(\w+): peak_requested", page) == ["grown", "calm"]
    assert "+1.00 MiB on 2026-01-02 02:00: after 0000000000, up to 0000000000" in page
    monkeypatch.setattr(page_size, "LARGEST", 200_000)
    many = [found_trend(f"c{k}", *(case_result(n, name=f"c{k}") for n in range(20))) for k in range(30)]
    page = history_page(many, metric="peak_requested")
    assert len(page.encode()) <= 200_000
    assert "2026-01-20 02:00" in page
    assert "2026-01-02 02:00" not in page.partition("</h2>")[2].partition("c1:")[0]
