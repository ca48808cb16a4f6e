"""Patches taken apart and put together, with git itself as the judge."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from oomscope.bisect.changes.hunks import apply_patch
from oomscope.bisect.vcs.patches import applied, compose, parse_patch
from tests.unit.bisect.repos import Repo

DIFF = ("--patch", "--binary", "--full-index", "--no-renames")


def patch_of(repo: Repo) -> bytes:
    """Return the change of the last commit; a file keeps the bytes that a terminal would not."""
    file = repo.path.parent / "patch"
    repo.git("diff-tree", *DIFF, f"--output={file}", "HEAD~1", "HEAD")
    return file.read_bytes()


def numbered(count: int) -> list[str]:
    return [f"line {number}\n" for number in range(count)]


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return Repo(tmp_path / "repo")


@pytest.mark.parametrize("case", range(6))
def test_any_choice_of_hunks_applies_at_its_place(repo: Repo, case: int) -> None:
    """Lines repeat, so that a hunk with a wrong number would apply somewhere else."""
    rng = random.Random(case)
    old = ["same\n"] * 90
    new = list(old)
    for place in sorted(rng.sample(range(0, 90, 9), 6), reverse=True):
        new[place : place + rng.randint(0, 2)] = [f"new {place}\n"] * rng.randint(0, 3)
    repo.commit("old", {"a.txt": "".join(old)})
    repo.commit("new", {"a.txt": "".join(new)})
    hunks = parse_patch(patch_of(repo))
    assert applied("".join(old).encode(), hunks) == "".join(new).encode()
    repo.git("checkout", "--quiet", "HEAD~1")
    for _ in range(3):
        chosen = [hunk for hunk in hunks if rng.random() < 0.5]
        if chosen:
            apply_patch(repo.path, compose(chosen))
        assert (repo.path / "a.txt").read_bytes() == applied("".join(old).encode(), chosen)
        repo.git("checkout", "--quiet", "--force", "HEAD")


def test_all_hunks_make_the_commit_whatever_it_holds(repo: Repo) -> None:
    before: dict[str, str | bytes | None] = {
        "two.py": "".join(numbered(40)),
        "gone.txt": "1\n",
        "binary": bytes(range(256)),
        "mode.sh": "x\n",
        "no newline": "a\nb",
        "crlf.txt": b"a\r\nb\r\nc\r\n",
        "space and ü.txt": "1\n",
        "empty": "",
    }
    changed = numbered(40)
    changed[2], changed[30:33] = "-- dashes\n", ["@@ -1,2 +3,4 @@\n", "diff --git a/x b/x\n"]
    after: dict[str, str | bytes | None] = {
        "two.py": "".join(changed),
        "gone.txt": None,
        "binary": bytes(reversed(range(256))),
        "no newline": "a\nc",
        "crlf.txt": b"a\r\nB\r\nc\r\n",
        "space and ü.txt": "2\n",
        "new/empty.py": "",
        "new/file.py": "x = 1\n",
        "empty": "no longer\n",
    }
    repo.commit("before", before)
    (repo.path / "mode.sh").chmod(0o755)
    wanted = repo.commit("after", after)
    repo.git("config", "core.quotePath", "false")
    hunks = parse_patch(patch_of(repo))
    assert {hunk.path for hunk in hunks} == {*after, "mode.sh"}
    assert [hunk.is_whole for hunk in hunks if hunk.path == "two.py"] == [False, False]
    assert {hunk.path for hunk in hunks if hunk.is_whole} == {
        *("gone.txt", "binary", "mode.sh", "new/empty.py", "new/file.py"),
    }
    repo.git("checkout", "--quiet", "HEAD~1")
    apply_patch(repo.path, compose(hunks))
    repo.git("add", "--all")
    assert repo.git("write-tree") == repo.git("rev-parse", f"{wanted}^{{tree}}")


def test_the_lines_that_a_hunk_writes_and_takes_away(repo: Repo) -> None:
    old, new = numbered(30), numbered(30)
    new[1:1] = ["first\n"] * 2
    new[22:24] = ["second\n"]  # lines 20 and 21 of the old file, counted from 0
    repo.commit("old", {"a.py": "".join(old)})
    repo.commit("new", {"a.py": "".join(new)})
    first, second = parse_patch(patch_of(repo))
    assert (first.added, first.removed) == ({2, 3}, set())
    assert (second.added, second.removed) == ({23}, {21, 22})
    assert second.name == "a.py @@ -18,8 +20,7 @@"
