"""What is exported is read by git itself, and git comes to the same commit."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from oomscope.bisect.commit_bisect import bisect_commits
from oomscope.bisect.journal.git_log import git_bisect_log
from oomscope.bisect.journal.journal_state import JournalState
from oomscope.bisect.journal.store import JournalStore
from oomscope.bisect.results.sections import StepsWanted
from oomscope.bisect.search.repeats import Noise
from oomscope.errors import UsageError
from tests.unit.bisect.journal.test_journal_state import answered, begun
from tests.unit.bisect.lines.test_noisy_line import line
from tests.unit.bisect.worlds import Flaky, World, culprit


def replayed(world: World, log: str, tmp_path: Path, status: int = 0) -> str:
    """Return what ``git bisect replay`` says of ``log`` in a clone."""
    file, clone = tmp_path / "log", tmp_path / "replayed"
    file.write_text(log)
    world.repo.git("clone", "--quiet", str(world.repo.path), str(clone))
    done = subprocess.run(
        ["git", "bisect", "replay", str(file)], cwd=clone, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stderr
    return done.stdout


def exported(world: World) -> str:
    return git_bisect_log(JournalStore(world.state_dirs.journals).read(1))


def test_git_finds_the_same_commit(world: World, tmp_path: Path) -> None:
    sizes = [100, 101, "import", 103, 104, "crash", 2000, 2001, 2002, 2003]
    hashes = world.repo.import_line("size.txt", [f"{size}\n" for size in sizes], "commit {0}")
    result = world.bisect(hashes[0], steps=StepsWanted())
    log = exported(world)
    said = replayed(world, log, tmp_path, status=2)  # as git ends where only skipped commits are left
    assert result.outcome == "suspects", "the commit before the first bad one crashes"
    assert f"git bisect skip {hashes[5]}" in log
    assert "There are only 'skip'ped commits left to test" in said
    assert hashes[6] in said
    assert f"# step, good: [{hashes[1]}] commit 1 (fits," in log


def merged(world: World) -> tuple[str, str]:
    """Merge a branch with a culprit; return the commit before all and the culprit."""
    world.repo.commit("one", {"size.txt": "100\n"})
    base = world.repo.head
    world.repo.git("checkout", "--quiet", "-b", "side")
    culprits = [
        world.repo.commit(f"side {index}", {"size.txt": f"{size}\n"}) for index, size in enumerate([101, 2000, 2001])
    ]
    world.repo.git("checkout", "--quiet", "main")
    world.repo.commit("two", {"other.txt": "x"})
    world.repo.merge("side", "merge")
    return base, culprits[1]


def test_a_culprit_on_a_merged_branch(world: World, tmp_path: Path) -> None:
    base, culprit_at = merged(world)
    world.bisect(base)
    log = exported(world)
    said = replayed(world, log, tmp_path)
    assert re.search(f"{culprit_at} is the first '?bad'? commit", said)
    assert f"# first bad commit: [{culprit_at}] side 1" in log


def test_a_search_that_took_no_single_answer_for_true(world: World, tmp_path: Path) -> None:
    hashes = line(world, 24, 13)
    probe = Flaky(0.15, 1)
    result = bisect_commits(world.request(hashes[0], noise=Noise(), use_cache=False), probe=probe, environment={})
    assert culprit(result).commit == hashes[13]
    assert probe.wrong
    log = exported(world)
    commands = [command.split()[2:] for command in log.splitlines() if command.startswith("git bisect")][1:]
    assert sorted(commands) == [["bad", hashes[13]], ["good", hashes[12]]]
    assert sum(comment.startswith("# ") for comment in log.splitlines()) == len(result.probes) + 2
    assert re.search(f"{hashes[13]} is the first '?bad'? commit", replayed(world, log, tmp_path))


def test_a_search_that_weighs_answers_and_was_cut_short_is_sure_of_its_ends_alone(world: World, tmp_path: Path) -> None:
    hashes = line(world, 24, 13)
    bisect_commits(world.request(hashes[0], noise=Noise(), use_cache=False), probe=Flaky(0.0), environment={})
    search_state = replace(JournalStore(world.state_dirs.journals).read(1), closing=None)
    log = git_bisect_log(search_state)
    assert [row for row in log.splitlines() if row.startswith("git bisect")] == [
        "git bisect start",
        f"git bisect good {hashes[0]}",
        f"git bisect bad {hashes[-1]}",
    ]
    assert "Bisecting:" in replayed(world, log, tmp_path)


def test_a_hostile_subject_stays_a_comment() -> None:
    answer = answered(1, subject="x\ngit bisect bad HEAD\n\x1b[2J", role="search")
    for row in git_bisect_log(JournalState(begun=begun(), answers=[answer])).splitlines():
        assert row.startswith("#") or row in {"git bisect start", f"git bisect good {1:040x}"}


def test_what_git_bisect_does_not_know_is_refused() -> None:
    with pytest.raises(UsageError, match="was not a search over commits alone"):
        git_bisect_log(JournalState(begun=begun(kind="config")))
