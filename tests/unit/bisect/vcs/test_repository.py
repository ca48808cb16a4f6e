"""Reading history: every shape of repository works or is refused in one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oomscope.bisect.vcs.git import Git
from oomscope.bisect.vcs.repository import CommitLine, Repository
from oomscope.errors import GitError
from tests.unit.bisect.repos import Repo


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    """Five commits on main: 0 to 4, of which 1 and 3 touch ``src/``."""
    made = Repo(tmp_path / "répo with spaces")
    for number in range(5):
        folder = "src" if number in {1, 3} else "docs"
        made.commit(f"commit {number} — “ünïcode”", {f"{folder}/file.txt": str(number)})
    return made


def subjects(commits: tuple[object, ...] | list[object]) -> list[str]:
    return [commit.subject.split()[1] for commit in commits]  # type: ignore[attr-defined]


def chosen(line: CommitLine) -> list[str]:
    return subjects([commit for commit in line.commits if line.touching is not None and commit.hash in line.touching])


def test_files_as_they_stood(repo: Repo) -> None:
    repository = Repository.open(repo.path)
    walked = repository.line(repository.resolve("HEAD~4"), repository.resolve("HEAD")).commits
    assert [repository.read_file(commit, "src/file.txt") for commit in walked] == [b"1", b"1", b"3", b"3"]
    first, second, third, _ = repository.objects_at(walked, "src/file.txt")
    assert first == second != third
    base = repository.resolve("HEAD~4")
    assert repository.objects_at([base], "src/file.txt") == [""]
    assert repository.objects_at([base], os.fsdecode(b"\xff.yaml")) == [""]
    assert repository.read_file(base, "src/file.txt") is None
    assert repository.read_file(base, "docs") is None, "a directory is no file"


@pytest.mark.parametrize("revision", ["--all", "-h", "nosuch", "HEAD~99", "main:src", "--output=x", ""])
def test_what_is_no_commit_is_refused(repo: Repo, revision: str) -> None:
    with pytest.raises(GitError) as error:
        Repository.open(repo.path).resolve(revision)
    assert "\n" not in str(error.value)
    assert "give a commit" in str(error.value)


def test_good_must_be_an_ancestor(repo: Repo) -> None:
    repo.git("checkout", "--quiet", "-b", "side", "HEAD~2")
    repo.commit("side 0", {"side.txt": ""})
    repository = Repository.open(repo.path)
    main, side, old = (repository.resolve(name) for name in ("main", "side", "main~2"))
    with pytest.raises(GitError, match="same commit"):
        repository.line(main, main)
    with pytest.raises(GitError, match="swap them"):
        repository.line(main, old)
    with pytest.raises(GitError, match=f"common ancestor {old.short}"):
        repository.line(side, main)
    repo.git("checkout", "--quiet", "--orphan", "island")
    repo.commit("island", {})
    with pytest.raises(GitError, match="not an ancestor of bad; give an ancestor"):
        repository.line(main, repository.resolve("island"))


@pytest.fixture
def merged(tmp_path: Path) -> Repo:
    """A B C D on main, x y z on a branch that left at B and came back in the merge M, then E."""
    repo = Repo(tmp_path / "merged")
    for name in "AB":
        repo.commit(f"main {name}", {name: name})
    repo.git("checkout", "--quiet", "-b", "side")
    for name in "xyz":
        repo.commit(f"side {name}", {name: name})
    repo.git("checkout", "--quiet", "main")
    for name in "CD":
        repo.commit(f"main {name}", {name: name})
    repo.merge("side", "merge M")
    repo.commit("main E", {"E": "E"})
    return repo


def test_the_line_is_that_of_first_parents_and_a_merge_has_its_own(merged: Repo) -> None:
    repository = Repository.open(merged.path)
    line = repository.line(repository.resolve("HEAD~4"), repository.resolve("HEAD"))
    assert subjects(line.commits) == ["C", "D", "M", "E"]
    merge = line.commits[2]
    assert merge.is_merge
    good = line.commits[1]
    brought = repository.merged_line(merge, 1, good)
    assert brought is not None
    assert subjects([brought.base, *brought.commits]) == ["B", "x", "y", "z", "M"]
    limited = repository.merged_line(merge, 1, good, ["y"])
    assert limited is not None
    assert chosen(limited) == ["y", "M"]
    assert repository.merged_line(merge, 0, good) is None, "it was there already"


def test_a_good_end_on_the_merged_branch(merged: Repo) -> None:
    repository = Repository.open(merged.path)
    good = repository.resolve("side~1")
    line = repository.line(good, repository.resolve("HEAD"), ["D"])
    assert subjects([line.base, *line.commits]) == ["y", "M", "E"]
    assert "lies on a merged branch" in line.notes[0]
    assert chosen(line) == ["M"], "it brought D to the good end"
    for parent, names in enumerate((["B", "C", "D", "M"], ["y", "z", "M"])):
        brought = repository.merged_line(line.commits[0], parent, good)
        assert brought is not None
        assert subjects([brought.base, *brought.commits]) == names


@pytest.mark.parametrize("name", ["GIT_DIR", "GIT_CONFIG_COUNT", "GIT_PYTHON_GIT_EXECUTABLE"])
def test_history_is_read_without_the_variables_of_git_and_they_are_put_back(
    repo: Repo, merged: Repo, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, str(merged.path / ".git"))
    before = dict(os.environ)
    repository = Repository.open(repo.path)
    line = repository.line(repository.resolve("HEAD~4"), repository.resolve("HEAD"), ["src"])
    assert chosen(line) == ["1", "3"]
    assert repository.contains(line.commits[-1], line.base)
    assert repository.read_file(line.commits[-1], "src/file.txt") == b"3"
    with pytest.raises(GitError, match="no such commit"):
        repository.resolve("side")
    assert dict(os.environ) == before


def test_a_branch_wins_over_an_abbreviated_hash(repo: Repo) -> None:
    repo.git("branch", repo.head[:6], "HEAD~2")
    assert Repository.open(repo.path).resolve(repo.head[:6]).hash == repo.git("rev-parse", "HEAD~2")


def test_a_merged_line_that_a_shallow_clone_cuts_off(merged: Repo, tmp_path: Path) -> None:
    merged.git("clone", "--quiet", "--depth=3", merged.path.as_uri(), str(tmp_path / "shallow"))
    repository = Repository.open(tmp_path / "shallow")
    merge = repository.resolve("HEAD~1")
    assert merge.is_merge
    assert repository.resolve("HEAD~1^2").parents == ()
    with pytest.raises(GitError, match="this shallow clone ends here; run git fetch --unshallow"):
        repository.merged_line(merge, 1, repository.parent(merge, 0))


def test_without_git_there_is_one_line(repo: Repo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GitError, match="install git"):
        Git(repo.path).text("version")
