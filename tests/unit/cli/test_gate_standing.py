"""Where a case stands in git: a commit alone says what was measured, or it is told that it does not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oomscope.gate.checkouts import standings
from oomscope.gate.suite.suite import Case, load_suite
from tests.integration.program import commit, git, new_repo

SUITE = """\
cases:
  - {name: known, config: ../configs/a.yaml}
  - {name: unknown, config: "../configs/[b].yaml"}
  - {name: harness, harness: h.py, repo: ..}
  - {name: outside, harness: ../../h.py, repo: ..}
  - {name: entry, entry: "train:build", repo: ..}
"""


@pytest.fixture
def cases(tmp_path: Path) -> dict[str, Case]:
    """Cases over a repository with a configuration and a harness that git does not know."""
    repo = new_repo(tmp_path / "repo")
    commit(repo, "Train", {"ci/memory.yaml": SUITE, "configs/a.yaml": "a", "configs/b.yaml": "b", "train.py": ""})
    for name in ("configs/[b].yaml", "ci/h.py", "../h.py"):
        (repo / name).write_text("new")
    return {case.name: case for case in load_suite(repo / "ci" / "memory.yaml").cases}


def test_what_git_does_not_know_is_in_no_commit(cases: dict[str, Case]) -> None:
    stands_at = standings()
    dirty = {name: standing.dirty for name, case in cases.items() if (standing := stands_at(case)) is not None}
    assert dirty == {"known": False, "unknown": True, "harness": True, "outside": False, "entry": False}


@pytest.mark.parametrize("key", ["clean", "process"])
def test_no_program_that_the_repository_names_runs(cases: dict[str, Case], tmp_path: Path, key: str) -> None:
    repo = tmp_path / "repo"
    git(repo, "config", f"filter.trap.{key}", f"touch {tmp_path}/sprung; cat")
    (repo / ".git" / "info" / "attributes").write_text("*.yaml filter=trap\n")
    os.utime(repo / "configs" / "a.yaml", (1_600_000_000, 1_600_000_000))
    standing = standings()(cases["known"])
    assert standing is not None
    assert not standing.dirty
    assert not (tmp_path / "sprung").exists()


def test_without_a_repository_nothing_stands_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "memory.yaml"
    path.write_text("cases: [{name: a, config: a.yaml}]")
    assert standings()(load_suite(path).cases[0]) is None
