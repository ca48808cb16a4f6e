"""A suite is at one home in every checkout of its repository."""

from __future__ import annotations

from pathlib import Path

from oomscope.gate.checkouts import home_of
from tests.integration.program import commit, git, new_repo


def test_every_checkout_knows_the_same_home(tmp_path: Path) -> None:
    repo = new_repo(tmp_path / "repo")
    first = commit(repo, "Begin", {"ci/memory.yaml": "cases: []"})
    commit(repo, "Go on", {"b": "2"})
    here = home_of(repo / "ci" / "memory.yaml")
    assert here is not None
    assert (here.path, here.first_commit, here.remote) == ("ci/memory.yaml", first, "")
    git(tmp_path, "clone", "--quiet", str(repo), "whole")
    git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{repo}", "cut")
    whole, cut = (home_of(tmp_path / name / "ci" / "memory.yaml") for name in ("whole", "cut"))
    assert whole is not None
    assert cut is not None
    assert whole.remote == cut.remote == str(repo).strip("/")
    assert (whole.first_commit, cut.first_commit) == (first, "")


def test_a_link_leads_home(tmp_path: Path) -> None:
    repo = new_repo(tmp_path / "repo")
    commit(repo, "Begin", {"ci/memory.yaml": "cases: []"})
    (tmp_path / "link.yaml").symlink_to(repo / "ci" / "memory.yaml")
    assert home_of(tmp_path / "link.yaml") == home_of(repo / "ci" / "memory.yaml")


def test_without_a_repository_or_a_commit_little_is_known(tmp_path: Path) -> None:
    (tmp_path / "memory.yaml").touch()
    assert home_of(tmp_path / "memory.yaml") is None
    repo = new_repo(tmp_path / "repo")
    (repo / "memory.yaml").touch()
    home = home_of(repo / "memory.yaml")
    assert home is not None
    assert (home.path, home.repository) == ("memory.yaml", "")
