"""A commit narrowed to its hunks or keys, through real clones, with a probe that reads the Python files in them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from oomscope.bisect.commit_bisect import bisect_commits
from oomscope.bisect.results.result import BisectResult, CommitCulprit
from oomscope.bisect.results.sections import HunkChange, Narrowed
from oomscope.bisect.targets.subjects import ConfigInRepo
from oomscope.bisect.vcs.forge import Forge
from oomscope.probe.job import BundledTarget, HarnessTarget, ProbeJob, Progress
from oomscope.probe.result import ProbeResult, Site, SiteBytes
from oomscope.report.html.pages import bisect_page
from tests.unit.bisect import worlds
from tests.unit.bisect.probe_results import AVAILABLE, error, fits, oom
from tests.unit.bisect.repos import fingerprint
from tests.unit.bisect.worlds import measure

SPACE = "\n" * 8
OLD = {"train.py": f"a = alloc(100)\n{SPACE}b = alloc(100)\n{SPACE}c = alloc(100)\n", "lr.py": "lr = 1\n"}
NEW: dict[str, str | None] = {
    "train.py": f"a = alloc(100)\nlog('x')\n{SPACE}b = alloc(1000)\n{SPACE}c = alloc(50)\n",
    "lr.py": "lr = 2\n",
}


class Run:
    """Runs a checkout: ``alloc(N)`` takes N bytes, ``wide()`` doubles all, ``use(x)`` needs ``def x`` somewhere."""

    def __init__(self) -> None:
        self.ran = 0
        self.environments: list[Mapping[str, str | None]] = []

    def __call__(self, job: ProbeJob, progress: Callable[[Progress], None] | None = None, /) -> ProbeResult:
        self.ran += 1
        if isinstance(job.target, BundledTarget):
            data = job.target.config["data"]
            return measure(data["seq_length"] * data["micro_batch_size"])
        assert isinstance(job.target, HarnessTarget)
        files = {path.name: path.read_text() for path in sorted(Path(job.target.repo).glob("*.py"))}
        text = "\n".join(files.values())
        for used in re.findall(r"use\((\w+)\)", text):
            if f"def {used}" not in text:
                return error("step", f"NameError: name '{used}' is not defined")
        for used in re.findall(r"log\((\w+)\)", text):
            if not re.search(rf"def \w+\(.*\b{used}\b", text):
                return error("step", f"NameError: name '{used}' is not defined")
        wide = 2 if "wide()" in text else 1
        sites = tuple(
            SiteBytes(
                site=Site(file=name, line=number, function="f"), bytes=wide * int(size), count=1, category="activation"
            )
            for name, content in files.items()
            for number, line in enumerate(content.splitlines(), start=1)
            for size in re.findall(r"alloc\((\d+)\)", line)
        )
        size = sum(row.bytes for row in sites)
        if size <= AVAILABLE:
            return fits(size, sites=sites)
        return oom(live=size, requested=0, demand=size, sites=sites)


class World(worlds.World):
    def __init__(self, tmp_path: Path) -> None:
        super().__init__(tmp_path)
        self.run = Run()

    def narrowed(self, old: Mapping[str, str], new: Mapping[str, str | None], **options: object) -> BisectResult:
        self.repo.commit("old", old)
        self.repo.commit("new", new)
        before = fingerprint(self.repo.path)
        result = bisect_commits(self.request("HEAD~1", hunks=True, **options), probe=self.run, environment={})
        assert fingerprint(self.repo.path) == before, "the user's repository is only read"
        json.dumps(result.to_json())
        return result


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def found(result: BisectResult) -> Narrowed:
    assert isinstance(result.culprit, CommitCulprit), result.message
    assert result.culprit.narrowed is not None, result.notes
    return result.culprit.narrowed


def live(hunk: HunkChange) -> int | None:
    return None if hunk.delta is None else hunk.delta.requested_bytes


def test_one_hunk_of_four_is_at_fault(world: World) -> None:
    narrowed = found(world.narrowed(OLD, NEW))
    assert narrowed.candidates == 4
    (guilty,) = narrowed.guilty
    assert (guilty.path, live(guilty)) == ("train.py", 900)
    assert guilty.name.startswith("train.py @@ -7,7 ")
    assert (narrowed.delta.requested_bytes, narrowed.rest.requested_bytes) == (900, -50)
    assert narrowed.interaction.requested_bytes == 0
    rows = [
        (hunk.is_guilty, [(row.delta_bytes, row.site.line) for row in hunk.sites if row.site])
        for hunk in narrowed.hunks
    ]
    assert rows == [(True, [(900, 11)]), (False, [(-50, 20)])], "the lines that each of them wrote"


def test_hunks_that_only_interact(world: World) -> None:
    new = {"train.py": OLD["train.py"].replace("c = alloc(100)", "wide()").replace("b = alloc(100)", "b = alloc(450)")}
    result = world.narrowed(OLD, {**new, "lr.py": "lr = alloc(7)\n"})
    narrowed = found(result)
    assert [live(hunk) for hunk in narrowed.guilty] == [350, 100]
    assert narrowed.delta.requested_bytes == 1100 - 300
    assert narrowed.interaction.requested_bytes == 800 - 350 - 100
    assert result.change == narrowed.delta + narrowed.rest


def test_a_hunk_and_the_new_file_that_it_needs(world: World) -> None:
    new = {"train.py": OLD["train.py"].replace("b = alloc(100)", "use(helper); alloc(1000)"), "lr.py": "lr = 2\n"}
    result = world.narrowed(OLD, {**new, "helper.py": "def helper(): pass\n", "other.py": "x = 1\n"})
    narrowed = found(result)
    assert {hunk.path for hunk in narrowed.guilty} == {"train.py", "helper.py"}
    assert narrowed.candidates == 4


def test_hunks_that_hand_an_argument_on_are_found_to_need_each_other(world: World) -> None:
    before = f"def f(x):{SPACE}    alloc(100){SPACE}def other():{SPACE}    alloc(1)\n"
    after = before.replace("f(x)", "f(x, wide)").replace("alloc(100)", "alloc(1100); log(wide)")
    narrowed = found(world.narrowed({"train.py": before}, {"train.py": after.replace("alloc(1)", "alloc(2)")}))
    assert narrowed.candidates == 3
    assert [hunk.number for hunk in narrowed.guilty] == [1, 2], "the body alone would be bad, and cannot run"


def test_what_a_name_made_needed_is_at_fault_only_if_the_commit_is_good_without_it(world: World) -> None:
    """Two files bind the name, either of which is enough, and prose mentions it."""
    new = {"train.py": OLD["train.py"].replace("b = alloc(100)", "use(helper); alloc(1000)"), "README.md": "def helper"}
    helper = "def helper(): pass\n"
    narrowed = found(world.narrowed({**OLD, "README.md": "x"}, {**new, "a.py": helper, "b.py": helper}))
    assert narrowed.candidates == 4
    assert (len(narrowed.guilty), narrowed.lumped) == (2, 0)
    assert {"train.py"} < {hunk.path for hunk in narrowed.guilty} < {"train.py", "a.py", "b.py"}


def test_mixtures_that_do_not_parse_take_no_probe(world: World) -> None:
    """Two hunks open and close a bracket; neither is probed without the other."""
    rows = "".join(f"    {number},\n" for number in range(20))
    old = {"train.py": f"sizes = (\n{rows})\n", "lr.py": "lr = 1\n"}
    new = {"train.py": f"sizes = alloc(2000)[\n{rows}]\n"}
    narrowed = found(world.narrowed(old, {**new, "lr.py": "lr = 2\n"}))
    assert [hunk.path for hunk in narrowed.guilty] == ["train.py", "train.py"]
    assert [live(hunk) for hunk in narrowed.guilty] == [None, None]
    assert narrowed.interaction == narrowed.delta, "none of it belongs to one of the two"
    assert world.run.ran <= 2 + 2


def test_keys_of_a_commit_that_changed_a_configuration(world: World) -> None:
    config = "preset: gpt-tiny\nmodel: {{position_embedding_type: rope}}\ndata: {{seq_length: {}}}\n{}"
    old = {"a.yaml": config.format(100, "optimizer: {lr: 0.001}\n")}
    new = {"a.yaml": config.format(2000, "optimizer: {lr: 0.1, clip_grad: 2.0}\n")}
    result = world.narrowed(old, new, subject=ConfigInRepo(path="a.yaml"))
    narrowed = found(result)
    assert (narrowed.keys, narrowed.candidates) == (("data.seq_length",), 3)
    assert isinstance(result.culprit, CommitCulprit)
    deltas = {row.key: row.delta.requested_bytes if row.delta else None for row in result.culprit.keys}
    assert deltas == {"data.seq_length": 2 * 1900, "optimizer.lr": None, "optimizer.clip_grad": None}


def test_a_large_commit_is_narrowed_by_file_and_learns_from_the_name_that_is_missing(world: World) -> None:
    """Thirty files use a name that another one binds: one failed run says which hunks need each other."""
    rest = {f"part{number}.py": f"x = 1\n{SPACE}y = 1\n{SPACE}z = 1\n" for number in range(30)}
    changed = {
        name: text.replace("x = 1", "x = use(helper)").replace("y = 1", "y = 2").replace("z = 1", "z = 2")
        for name, text in rest.items()
    }
    old = {**rest, "zz.py": f"def old(): pass\n{SPACE}a = alloc(100)\n"}
    new = {**changed, "zz.py": f"def helper(): pass\n{SPACE}a = alloc(1100)\n"}
    new["part7.py"] = changed["part7.py"].replace("y = 2", "y = alloc(950)")
    narrowed = found(world.narrowed(old, new))
    assert narrowed.candidates == 92
    assert "zz.py" in {hunk.path for hunk in narrowed.guilty}
    assert narrowed.lumped == 0
    assert world.run.ran <= 20


def test_the_page_shows_the_change_and_the_code_around_lines_that_grew_elsewhere(world: World) -> None:
    old = {"train.py": OLD["train.py"].replace("b = alloc(100)", "b = alloc(350)"), "lr.py": "lr = 1\n"}
    result = world.narrowed(old, {"lr.py": "lr = '<b>'\nwide()\n", "copied.py": "x = 1\n" * 3000})
    culprit = result.culprit
    assert isinstance(culprit, CommitCulprit)
    assert culprit.message == "new"
    (hunk,), left_out = culprit.hunks, culprit.left_out
    assert left_out == 1
    assert (hunk.path, [(line.mark, line.number, line.text) for line in hunk.lines]) == (
        "lr.py",
        [("-", 1, "lr = 1"), ("+", 1, "lr = '<b>'"), ("+", 2, "wide()")],
    )
    assert culprit.around[0].path == "train.py"
    assert (" ", 10, "b = alloc(350)") in culprit.around[0].lines
    page = bisect_page(result, title="t", forge=Forge("https://github.com/ada/tiny"))
    assert f'<a href="https://github.com/ada/tiny/commit/{culprit.commit}" rel="noreferrer">' in page
    assert f'<a href="https://github.com/ada/tiny/blob/{culprit.commit}/lr.py#L1" rel="noreferrer">' in page
    assert "<code>+lr = &#39;&lt;b&gt;&#39;</code>" in page
    assert f'/blob/{culprit.commit}/train.py#L10" rel="noreferrer" aria-label="see the line">' in page
    assert re.search(r"<code> b = alloc\(350\)</code></td><td class=\"bad\">\+350 B activation<", page)
