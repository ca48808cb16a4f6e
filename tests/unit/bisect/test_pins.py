from __future__ import annotations

from pathlib import Path

import pytest

from oomscope.bisect.journal.journalled import pinned, pins_of, place_at, title_of
from oomscope.bisect.requests import CommitRequest, ConfigRequest, EnvironmentRequest
from oomscope.bisect.run.places import Places
from oomscope.bisect.targets.subjects import ConfigInRepo
from oomscope.bisect.vcs.ranges import FileAt, FileRange, RevisionRange
from oomscope.errors import GitError, UsageError
from tests.unit.bisect.repos import Repo

SUBJECT = ConfigInRepo(path="a.yaml")


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    repo = Repo(tmp_path / "repo")
    repo.commit("one", {"a.yaml": "x"})
    repo.git("tag", "v1")
    repo.commit("two", {"a.yaml": "y"})
    return repo


def commits(repo: Repo, good: str = "v1", **options: object) -> CommitRequest:
    places = Places(repo.path.parent / "state")
    range_ = RevisionRange(good=good, bad="main")
    return CommitRequest(repo=repo.path, range=range_, subject=SUBJECT, **{"places": places, **options})  # type: ignore[arg-type]


def test_revisions_are_held_though_branches_move(repo: Repo) -> None:
    request = commits(repo)
    pins = pins_of(request)
    assert pins == {"good": repo.git("rev-parse", "v1"), "bad": repo.head}
    repo.commit("three", {"a.yaml": "z"})
    held = pinned(request, pins)
    assert isinstance(held, CommitRequest)
    assert held.range == RevisionRange(good=pins["good"], bad=pins["bad"])
    assert title_of(request) == "v1..main"


def test_an_open_end_stays_open(repo: Repo) -> None:
    request = commits(repo, good="")
    pins = pins_of(request)
    assert list(pins) == ["bad"]
    held = pinned(request, pins)
    assert isinstance(held, CommitRequest)
    assert held.range.is_open


def test_files_in_commits_keep_their_names(repo: Repo, tmp_path: Path) -> None:
    file = tmp_path / "b.yaml"
    file.touch()
    range_ = FileRange(good=FileAt(revision="v1", path="a.yaml"), bad=file)
    request = ConfigRequest(range=range_, repo=repo.path, places=Places(tmp_path / "state"))
    held = pinned(request, pins_of(request))
    assert isinstance(held, ConfigRequest)
    assert isinstance(held.range.good, FileAt)
    assert (str(held.range.good), held.range.good.commit) == ("v1:a.yaml", repo.git("rev-parse", "v1"))
    assert held.range == range_
    assert title_of(held) == f"v1:a.yaml..{file}"


def test_one_commit_in_two_surroundings(repo: Repo, tmp_path: Path) -> None:
    request = EnvironmentRequest(
        repo=repo.path, revision="v1", subject=SUBJECT, layers=(), places=Places(tmp_path / "state")
    )
    held = pinned(request, pins_of(request))
    assert isinstance(held, EnvironmentRequest)
    assert held.revision == repo.git("rev-parse", "v1")
    assert title_of(request) == "v1"


def test_what_is_not_there_leaves_nothing_behind(repo: Repo, tmp_path: Path) -> None:
    inside = Places(tmp_path / "cache", repo.path / ".git" / "state")
    for request, error in ((commits(repo, good="v9"), GitError), (commits(repo, places=inside), UsageError)):
        with pytest.raises(error):
            pins_of(request)
    assert not (repo.path / ".git" / "state").exists()


def test_a_place_is_one_from_wherever_it_is_seen(repo: Repo, tmp_path: Path) -> None:
    below = repo.path / "deep" / "er"
    below.mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to(repo.path)
    assert place_at(repo.path) == place_at(below) == place_at(link) == str(repo.path / ".git")
    assert place_at(tmp_path) == str(tmp_path)
