"""A whole search over a real repository, with a probe that only reads a number out of the checkout."""

from __future__ import annotations

import html
import io
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from oomscope.bisect.commit_bisect import bisect_commits
from oomscope.bisect.run.state_dirs import StateDirs
from oomscope.bisect.search.line import Answer
from oomscope.errors import ExitCode, OomscopeError, UsageError
from oomscope.probe.demand import requested_bytes
from oomscope.probe.job import HarnessTarget, ProbeJob, Progress
from oomscope.probe.result import ProbeResult
from oomscope.report.commands.bisect import bisect_report
from oomscope.report.html.pages import bisect_page
from oomscope.report.text.console import result_console, show
from oomscope.units import Bytes
from tests.unit.bisect.probe_results import error
from tests.unit.bisect.repos import Repo, fingerprint
from tests.unit.bisect.worlds import Listener, World, culprit, with_clock


def test_names_the_commit_with_its_bytes_lines_and_steps(world: World) -> None:
    hashes = world.sizes([500, 510, 510, 700, 700, 1200, 1210, 1250])
    result = world.bisect(hashes[0])
    found = culprit(result)
    assert (found.commit, found.subject, found.author) == (hashes[5], "commit 5", "Ada Løvelace")
    assert found.delta.requested_bytes == 500
    assert sum(row.delta_bytes for row in found.sites) == 500
    assert result.change == found.delta
    total = sum((step.delta for step in result.steps), start=Bytes())
    assert total.requested_bytes == 1250 - 500
    assert result.steps[0].since == hashes[0]
    assert result.steps[-1].commit == hashes[7]
    assert next(step for step in result.steps if step.commit == hashes[5]).commits == 1
    assert (result.candidates, result.considered) == (7, 5)
    assert result.exit_code is ExitCode.OK
    assert result.verdict is not None
    assert result.verdict.kind == "capacity"
    assert result.last_good is not None
    assert result.last_good.name == hashes[4], "the culprit's parent, which measures the same as the commit probed"


def test_the_first_line_says_that_hunks_take_more_probes(world: World) -> None:
    world.bisect(world.sizes([500, 1200])[0], hunks=True)
    assert world.listener.plan is not None
    assert world.listener.plan.more_if == ("a culprit is found (its hunks are searched too)",)


def test_what_probes_remark_on_reaches_every_report_once(world: World) -> None:
    """Notes that differ in numbers alone are one; what a single probe says is said of that one."""
    hashes = world.sizes([500, 510, 520, 700, 1200])

    def probe(job: ProbeJob, progress: Callable[[Progress], None] | None = None, /) -> ProbeResult:
        found = world.probe(job, progress)
        size = requested_bytes(found)
        own = ("the kernel was <slow>",) if size == 1200 else ()
        return replace(found, notes=(f"the program read data {size} times, first at train.py:{size}", *own))

    result = bisect_commits(world.request(hashes[0]), probe=probe, environment={})
    assert [record.peak.requested_bytes for record in result.probes[:2]] == [500, 1200]
    first = [
        "the program read data 500 times, first at train.py:500 (first in probe 1)",
        "the kernel was <slow> (first in probe 2)",
    ]
    assert result.to_json()["notes"] == first
    printed = io.StringIO()
    show(result_console(printed), bisect_report(result))
    text, page = " ".join(printed.getvalue().split()), html.unescape(bisect_page(result, title="t"))
    for note in first:
        assert (text.count(note), page.count(note)) == (1, 1)


def test_the_cures_of_the_culprit_are_run_whole(world: World) -> None:
    hashes = world.sizes([500, 510, 1200, 1210])
    confirmed: list[int | None] = []

    def probe(job: ProbeJob, progress: Callable[[Progress], None] | None = None, /) -> ProbeResult:
        found = world.probe(job, progress)
        if found.verdict is None:
            return found
        if job.confirm:
            confirmed.append(requested_bytes(found))
        verdict = replace(found.verdict, kind="fragmentation", confirmed=bool(job.confirm))
        return replace(found, verdict=verdict, backend="virtual")

    result = bisect_commits(world.request(hashes[0]), probe=probe, environment={})
    assert culprit(result).commit == hashes[2]
    assert result.first_bad is not None
    assert result.first_bad.result.verdict is not None
    assert result.first_bad.result.verdict.confirmed
    assert confirmed == [1200], "of the culprit, once"
    assert 1200 in [record.peak.requested_bytes for record in result.probes if record.peak]


def test_the_output_of_a_failed_probe_is_kept_beside_the_results(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", None)
    hashes = world.sizes([500, "import", "import", 1200])

    def probe(job: ProbeJob, progress: Callable[[Progress], None] | None = None, /) -> ProbeResult:
        result = world.probe(job, progress)
        assert isinstance(job.target, HarnessTarget)
        said = f"Traceback\n  {job.target.repo}/train.py, line 1 \N{SNOWMAN}"
        return replace(result, failure=replace(result.failure, detail=said)) if result.failure else result

    for _ in range(2):  # the second search takes the failure from the first one's results
        result = bisect_commits(world.request(hashes[0]), probe=probe, environment={})
        skipped = result.untestable[0]
        assert skipped.log is not None
        log = Path(skipped.log)
        assert log.parent == world.state_dirs.logs
        assert log.name.startswith(hashes[1][:10])
        assert log.read_text() == "Traceback\n  train.py, line 1 \N{SNOWMAN}"
        assert len(list(world.state_dirs.logs.iterdir())) == 1
    assert not list(temporary.iterdir())


def test_a_place_for_state_in_gits_own_directory_is_refused(world: World, tmp_path: Path) -> None:
    good, *_ = world.sizes([500, 1200])
    git_directory, link, tree = world.repo.path / ".git", tmp_path / "link", tmp_path / "tree"
    link.symlink_to(git_directory)
    world.repo.git("worktree", "add", "--quiet", "--detach", str(tree))
    before = fingerprint(git_directory)
    for repo, root in ((world.repo.path, link / "state"), (tree, git_directory)):
        request = replace(world.request(good), repo=repo, state_dirs=StateDirs(root))
        with pytest.raises(UsageError, match=r"git's own directory.*give --state a directory outside"):
            bisect_commits(request, probe=world.probe, environment={})
    assert fingerprint(git_directory) == before


@pytest.mark.parametrize(
    ("sizes", "outcome", "said"),
    [
        ([500, 600, 700], "no_culprit", "the bad end is good"),
        ([1500, 600, 1700], "ends_invalid", "bad already"),
        ([1500, 600, 700], "ends_invalid", "swap them"),
        (["import", 600, 1700], "ends_invalid", "the good end cannot be tested: import"),
        ([500, 600, "crash"], "ends_invalid", "the bad end cannot be tested: crash"),
    ],
)
def test_ends_that_answer_by_themselves(world: World, sizes: list[int | str], outcome: str, said: str) -> None:
    hashes = world.sizes(sizes)
    result = world.bisect(hashes[0])
    assert result.outcome == outcome
    assert said in result.message
    assert len(result.probes) == 2
    assert result.exit_code is (ExitCode.OK if outcome == "no_culprit" else ExitCode.INCONCLUSIVE)


def test_asking_again_probes_nothing_and_a_new_harness_probes_again(world: World) -> None:
    hashes = world.sizes([500, 600, 1200, 1300])
    first = world.bisect(hashes[0])
    ran = len(world.probe.ran)
    world.listener = Listener()
    again = world.bisect(hashes[0])
    assert len(world.probe.ran) == ran
    assert all(record.cached for record in again.probes)
    assert again.culprit == first.culprit
    world.listener = Listener()
    world.harness.write_text("# drives it otherwise\n")
    world.bisect(hashes[0])
    assert len(world.probe.ran) == 2 * ran


def test_a_probe_that_was_killed_gets_a_second_chance(world: World) -> None:
    hashes = world.sizes([500, 600, 1200])
    killed: set[str] = set()

    def probe(job: ProbeJob, progress: Callable[[Progress], None] | None = None, /) -> ProbeResult:
        result = world.probe(job, progress)
        content = world.probe.ran[-1]
        if content in killed:
            return result
        killed.add(content)
        return error("killed")

    result = bisect_commits(world.request(hashes[0]), probe=probe, environment={})
    assert culprit(result).commit == hashes[2]
    assert len(world.probe.ran) == 2 * len(result.probes)


def test_a_defect_of_oomscope_stops_the_search(world: World) -> None:
    hashes = world.sizes([500, "internal", 1200])
    with pytest.raises(OomscopeError, match="please report it"):
        world.bisect(hashes[0])


def test_the_deadline_ends_the_search_with_the_suspects_left(world: World) -> None:
    hashes = world.sizes([500 + index if index < 9 else 1100 + index for index in range(17)])
    result = with_clock(world, hashes[0], deadline_s=4 * 60 + 30)
    assert result.outcome == "suspects"
    assert "deadline" in result.message
    assert result.is_out_of_time
    assert len(result.probes) == 4, "a probe that the deadline cut off is no untestable commit"
    assert hashes[9] in [suspect.commit for suspect in result.suspects]
    assert len(result.suspects) == 4
    assert result.suspects[0].reason == "not probed"
    assert result.last_good is not None
    assert result.first_bad is not None


@pytest.mark.parametrize(("deadline_s", "answers"), [(0, []), (30, []), (90, [Answer.GOOD])])
def test_a_deadline_before_the_ends_are_known_answers_nothing(
    world: World, deadline_s: float, answers: list[Answer]
) -> None:
    hashes = world.sizes([500, 600, 1200])
    result = with_clock(world, hashes[0], deadline_s=deadline_s)
    assert result.outcome == "inconclusive"
    assert "before both ends were checked" in result.message
    assert result.suspects == ()
    assert [record.answer for record in result.probes] == answers
    assert result.change is None
    assert result.exit_code is ExitCode.INCONCLUSIVE


def history(world: World, *changes: str | int) -> tuple[str, list[str]]:
    """Commit a good end, then for each number a size, for each word a file of that name; return end and hashes."""
    good = world.repo.commit("start", {"size.txt": "500\n"})
    files = [
        {"size.txt": f"{change}\n"} if isinstance(change, int) else {change: str(index)}
        for index, change in enumerate(changes)
    ]
    return good, [world.repo.commit(f"change {index}", content) for index, content in enumerate(files)]


@pytest.mark.parametrize("place", [0, 4, 7])
def test_a_culprit_outside_the_chosen_paths_is_found_all_the_same(world: World, place: int) -> None:
    """It lies before, between or after the two commits that touch the paths."""
    changes: list[str | int] = ["x", "x", "README", "x", "x", "README", "x", "x"]
    changes[place] = 1200
    good, hashes = history(world, *changes)
    result = world.bisect(good, paths=("README",))
    assert culprit(result).commit == hashes[place]
    assert any("touches none of the chosen paths" in note for note in result.notes)
    plan = world.listener.plan
    assert plan is not None
    (more,) = (int(number) for text in plan.more_if for number in re.findall(r"up to (\d+) more", text))
    assert len(result.probes) <= plan.probes_at_most + more


def test_the_commands_repeat_the_probes(world: World, tmp_path: Path) -> None:
    hashes = world.sizes([500, 1200])
    result = world.bisect(hashes[0])
    assert result.first_bad is not None
    clone, checkout, probe = result.first_bad.commands
    for command in (clone, checkout):
        subprocess.run(shlex.split(command), cwd=tmp_path, check=True, capture_output=True)
    words = shlex.split(probe)
    place = tmp_path / words[words.index("--repo") + 1]
    assert (place / "size.txt").read_text() == "1200\n"
    assert words[:4] == ["oomscope", "probe", "--harness", str(world.harness)]


def test_the_commands_lay_submodules_out_from_the_repository_without_their_origin(world: World, tmp_path: Path) -> None:
    inner, outer, absent = (Repo(tmp_path / name) for name in ("inner", "outer", "absent"))
    inner.commit("inner", {"deep.py": "deep\n"})
    outer.git("submodule", "--quiet", "add", str(inner.path), "in side")
    outer.commit("outer", {"size.py": "one\n"})
    absent.commit("absent", {"other.py": ""})
    good = world.repo.commit("good", {"size.txt": "500\n"})
    for module in (outer, absent):
        world.repo.git("submodule", "--quiet", "add", str(module.path), module.path.name)
    world.repo.git("submodule", "--quiet", "update", "--init", "--recursive", "outer")
    world.repo.commit("bad", {"size.txt": "1200\n"})
    world.repo.git("submodule", "--quiet", "deinit", "--force", "absent")
    shutil.rmtree(world.repo.path / ".git/modules/absent")
    for module in (inner, outer, absent):
        module.path.rename(module.path.with_suffix(".gone"))

    result = world.bisect(good)
    assert result.last_good is not None
    assert result.first_bad is not None
    assert len(result.last_good.commands) == 3, "it has no submodules"
    *lay_out, probe = result.first_bad.commands
    for command in lay_out:
        subprocess.run(shlex.split(command), cwd=tmp_path, check=True, capture_output=True)
    words = shlex.split(probe)
    place = tmp_path / words[words.index("--repo") + 1]
    assert (place / "outer/size.py").read_text() == "one\n"
    assert (place / "outer/in side/deep.py").read_text() == "deep\n"


def test_the_document_is_json_and_has_what_was_promised(world: World) -> None:
    hashes = world.sizes([500, "import", 502, 1200])
    document = json.loads(json.dumps(world.bisect(hashes[0]).to_json()))
    assert document["outcome"] == "culprit"
    assert document["culprit"]["commit"] == hashes[3]
    assert set(document["culprit"]["delta"]) == {"requested_bytes", "reserved_bytes"}
    assert sum(row["delta_bytes"] for row in document["culprit"]["sites"]) == 1200 - 502
    assert all(set(step["delta"]) == {"requested_bytes", "reserved_bytes"} for step in document["steps"])
    assert document["untestable"] == [
        {"commit": hashes[1], "keys": None, "reason": "import: train.py:1 import", "log": None}
    ]
    assert document["verdict"]["kind"] == "capacity"
    assert {probe["answer"] for probe in document["probes"]} == {"good", "bad", "untestable"}
    assert document["last_good"]["result"]["outcome"] == "fits"


def test_changes_that_are_not_committed_are_mentioned_where_they_would_be_expected(world: World) -> None:
    hashes = world.sizes([500, 600, 1200])
    note = "uncommitted changes in the work tree are not searched"
    assert note not in world.bisect(hashes[0]).notes
    tracked = next(path for path in world.repo.path.iterdir() if path.is_file())
    tracked.write_text("edited")
    world.listener = Listener()
    assert note in world.bisect(hashes[0]).notes
