"""What a commit holds never changes: git is asked for it once, and for submodules' names only where there are any."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomscope.bisect.vcs import repository as commits
from oomscope.bisect.vcs.checkouts import Checkout
from oomscope.bisect.vcs.git import Git
from oomscope.bisect.vcs.repository import Repository
from tests.unit.bisect.repos import Repo


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    made = Repo(tmp_path / "repo")
    made.commit("first", {"a.txt": "1"})
    return made


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The subcommands that git was called with, and ``read`` for each reading through GitPython."""
    calls: list[str] = []
    run, reading = Git._run, commits.reading

    def noted(git: Git, arguments, stdin):
        calls.append(arguments[0])
        return run(git, arguments, stdin)

    def noted_reading(directory: Path):
        calls.append("read")
        return reading(directory)

    monkeypatch.setattr(Git, "_run", noted)
    monkeypatch.setattr(commits, "reading", noted_reading)
    return calls


def test_what_a_commit_holds_is_asked_for_once(repo: Repo, asked: list[str]) -> None:
    repository = Repository.open(repo.path)
    commit = repository.resolve("main")
    asked.clear()
    assert [repository.read_file(commit, "a.txt") for _ in range(3)] == [b"1"] * 3
    assert [repository.read_file(commit, "b.txt") for _ in range(3)] == [None] * 3
    assert asked == ["read", "read"]
    asked.clear()
    found = [repository.objects_at([commit], name) for name in ("a.txt", "b.txt", "a.txt", "b.txt")]
    assert found[0] == found[2] != [""]
    assert found[1] == found[3] == [""]
    assert asked == ["cat-file", "cat-file"]


def test_a_commit_of_another_repository_is_another(repo: Repo, tmp_path: Path) -> None:
    other = Repo(tmp_path / "other")
    other.commit("first", {"a.txt": "2"})
    read = [
        opened.read_file(opened.resolve("main"), "a.txt")
        for opened in (Repository.open(repo.path), Repository.open(other.path))
    ]
    assert read == [b"1", b"2"]


def test_without_submodules_nobody_asks_for_their_names(repo: Repo, asked: list[str], tmp_path: Path) -> None:
    repository = Repository.open(repo.path)
    checkout = Checkout(repository, tmp_path / "clone")
    commit = repository.resolve("main")
    checkout.show(commit)
    asked.clear()
    assert checkout.show(commit) == ()
    assert asked.count("ls-tree") == 1
