"""A merge at fault is opened; it is named only where all that it brought in is known to be good."""

from __future__ import annotations

import pytest

from oomscope.bisect.lines.line import Line
from oomscope.bisect.lines.merges import ruled_out_by
from oomscope.bisect.results.result import BisectResult, ProbeRecord
from oomscope.bisect.results.sections import StepsWanted
from oomscope.bisect.search.line import Answer
from oomscope.bisect.vcs.repository import Repository
from oomscope.errors import ExitCode
from tests.unit.bisect.worlds import World, culprit, with_clock


@pytest.fixture
def merged(world: World) -> dict[str, str]:
    """A line with a merge at fault: 500 501 M(1200) 1201, where a branch of four made the third of them bad."""
    commits = {"good": world.repo.commit("main 0", {"size.txt": "500", "other": "0"})}
    world.repo.git("checkout", "--quiet", "-b", "side")
    for index, size in enumerate([505, 506, 1200, 1207]):
        commits[f"side {index}"] = world.repo.commit(f"side {index}", {"size.txt": str(size)})
    world.repo.git("checkout", "--quiet", "main")
    commits["main 1"] = world.repo.commit("main 1", {"other": "1"})
    commits["merge"] = world.repo.merge("side", "merge side")
    commits["main 2"] = world.repo.commit("main 2", {"other": "2"})
    return commits


def test_a_merge_at_fault_is_opened(world: World, merged: dict[str, str]) -> None:
    result = world.bisect(merged["good"])
    assert culprit(result).commit == merged["side 2"]
    assert culprit(result).delta.requested_bytes == 1200 - 506
    rows = [(row.label, row.merge, row.delta.requested_bytes) for row in result.steps]
    assert rows == [
        ("main 1", None, 0),
        ("side 1", merged["merge"], 6),
        ("side 2", merged["merge"], 694),
        ("side 3", merged["merge"], 7),
        ("main 2", None, 0),
    ], "each step once; the merge adds nothing of its own"


def test_first_parent_stops_at_the_merge(world: World, merged: dict[str, str]) -> None:
    result = world.bisect(merged["good"], first_parent=True)
    assert culprit(result).commit == merged["merge"]
    assert {row.merge for row in result.steps} == {None}
    assert (result.candidates, result.on_line) == (3, 3)
    assert world.listener.plan is not None
    assert world.listener.plan.more_if == ()


def test_a_merge_of_two_good_sides_is_itself_at_fault(world: World) -> None:
    good = world.repo.commit("main 0", {"size.txt": "500", "other": "0"})
    world.repo.git("checkout", "--quiet", "-b", "side")
    side = world.repo.commit("side 0", {"size.txt": "600"})
    world.repo.git("checkout", "--quiet", "main")
    world.repo.commit("main 1", {"other": "1"})
    world.repo.git("merge", "--quiet", "--no-ff", "--no-commit", "side")
    guilty = world.repo.commit("merge with a change", {"size.txt": "1200"})
    result = world.bisect(good)
    assert culprit(result).commit == guilty
    ruled_out = f"the branch of {side[:10]} side 0, merged by {guilty[:10]}, is not at fault by itself"
    assert any(note.startswith(ruled_out) for note in result.notes)
    assert [(row.label, row.merge, row.delta.requested_bytes) for row in result.steps] == [
        ("main 1", None, 0),
        ("side 0", guilty, 100),
        ("merge with a change", None, 600),
    ], "what the merge adds to what it brought in"


def diverge(world: World, main: str, *side: dict[str, str]) -> tuple[str, list[str]]:
    """Commit a good end and on top of it ``main``, a size, then ``side`` on a branch from there; return hashes."""
    good = world.repo.commit("good", {"size.txt": "500"})
    world.repo.commit("fork", {"size.txt": main, "fork": "1"})
    world.repo.git("checkout", "--quiet", "-b", "side")
    hashes = [world.repo.commit(f"side {index}", files) for index, files in enumerate(side)]
    world.repo.git("checkout", "--quiet", "main")
    world.repo.commit("main", {"size.txt": "500", "main": "1"})
    return good, hashes


def merge_with(world: World, size: str) -> str:
    world.repo.git("merge", "--quiet", "--no-ff", "--no-commit", "--strategy=ours", "side")
    return world.repo.commit("merge side", {"size.txt": size})


def named(result: BisectResult) -> list[str]:
    return [suspect.subject for suspect in result.suspects]


def assert_only_suspects(result: BisectResult, *subjects: str) -> None:
    assert (result.outcome, result.culprit, result.exit_code) == ("suspects", None, ExitCode.INCONCLUSIVE)
    assert named(result) == list(subjects)
    assert result.change is not None
    assert sum(step.delta.requested_bytes for step in result.steps) == 700


def test_a_branch_that_was_never_seen_to_be_good_leaves_suspects(world: World) -> None:
    good, _ = diverge(world, "import", {"a": "1"}, {"size.txt": "1200"}, {"b": "1"})
    merge_with(world, "1200")
    result = world.bisect(good)
    assert_only_suspects(result, "side 0", "side 1", "merge side")
    assert "its beginning cannot be tested: import" in result.message
    assert [suspect.reason.split(":")[0] for suspect in result.suspects] == [
        "import",
        "the first that is known to be bad",
        "the first that is known to be bad",
    ]


def test_a_branch_of_another_history_leaves_suspects(world: World) -> None:
    good = world.repo.commit("good", {"size.txt": "500"})
    world.repo.git("checkout", "--quiet", "--orphan", "side")
    world.repo.commit("island", {"size.txt": "600"})
    world.repo.git("checkout", "--quiet", "main")
    world.repo.git("merge", "--quiet", "--no-commit", "--strategy=ours", "--allow-unrelated-histories", "side")
    world.repo.commit("merge island", {"size.txt": "1200"})
    result = world.bisect(good)
    assert_only_suspects(result, "island", "merge island")
    assert "it shares no history with the good end" in result.message


@pytest.mark.parametrize(("probes", "suspects"), [(4, 5), (6, 2)])
def test_a_deadline_inside_a_merge_leaves_suspects(
    world: World, merged: dict[str, str], probes: int, suspects: int
) -> None:
    """Before its branch is looked into, after both of its ends and after a probe between them."""
    result = with_clock(world, merged["good"], deadline_s=60 * probes + 30)
    assert (result.outcome, result.exit_code) == ("suspects", ExitCode.INCONCLUSIVE)
    assert "the deadline passed" in result.message
    assert "side 2" in named(result)
    assert len(result.suspects) == suspects
    assert all("not probed" not in suspect.reason or suspect.reason == "not probed" for suspect in result.suspects)
    assert sum(not record.cached for record in result.probes) == probes


def test_what_the_steps_show_to_be_good_is_no_suspect(world: World) -> None:
    good = world.repo.commit("good", {"size.txt": "500"})
    world.repo.git("checkout", "--quiet", "-b", "side")
    for name, size in (("side 0", "501"), ("side 1", "502")):
        world.repo.commit(name, {"size.txt": size})
    world.repo.git("checkout", "--quiet", "main")
    world.repo.commit("main", {"size.txt": "500", "main": "1"})
    merge_with(world, "import")
    world.repo.commit("bad", {"size.txt": "1200"})
    world.repo.git("checkout", "--quiet", "side")
    for name, size in (("side 2", "503"), ("side 3", "504")):
        world.repo.commit(name, {"size.txt": size})
    world.repo.git("checkout", "--quiet", "main")
    merge_with(world, "1210")
    result = world.bisect(good, steps=StepsWanted())
    assert named(result) == ["merge side", "bad"], "side 3, which contains the others, is good"
    assert result.message.startswith("one of 2 commits is at fault: those before ")


def test_what_is_good_rules_out_nothing_that_is_older_than_a_bad_commit_in_it(world: World) -> None:
    good = world.repo.commit("good", {"size.txt": "500"})
    hashes = [world.repo.commit(size, {"size.txt": size}) for size in ("501", "import", "1200", "503")]
    repository = Repository.open(world.repo.path)
    commits = repository.line(repository.resolve(good), repository.resolve("HEAD")).commits
    line = Line(tuple((commit,) for commit in commits), (), None, None)  # type: ignore[arg-type]
    answers = (Answer.GOOD, Answer.UNTESTABLE, Answer.BAD, Answer.GOOD)
    line.records |= {place: record(answer) for place, answer in enumerate(answers)}
    assert ruled_out_by((line,), repository, repository.resolve(good)) == {hashes[0], hashes[3]}


def record(answer: Answer) -> ProbeRecord:
    return ProbeRecord(number=1, role="search", answer=answer, reason="")
