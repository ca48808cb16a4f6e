"""A commit is laid out without the data that a partial clone left out, and not at all without its code."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oomscope.bisect.vcs.checkouts import Checkout
from oomscope.bisect.vcs.repository import Repository
from oomscope.errors import GitError
from tests.unit.bisect.repos import Repo, fingerprint
from tests.unit.bisect.vcs.test_checkouts import files

LARGE = "0123456789" * 1000


@pytest.fixture
def partial(tmp_path: Path) -> Path:
    """Small data, then large, then moved, then code that is large itself."""
    whole = Repo(tmp_path / "whole")
    whole.commit("small", {"model.py": "1", "data/täble [1].csv": "small"})
    whole.commit("large", {"model.py": "2", "data/täble [1].csv": LARGE, "gone.txt": "x"})
    whole.commit("two", {"data/second\nline": LARGE + "2", "gone.txt": None})
    whole.commit("code", {"generated.py": f"# {LARGE}"})
    whole.git("config", "uploadpack.allowFilter", "true")
    clone = tmp_path / "partial"
    whole.git("clone", "-q", "--bare", "--filter=blob:limit=1k", whole.path.as_uri(), str(clone))
    return clone


def test_data_that_is_not_there_is_left_out_and_named(partial: Path, tmp_path: Path) -> None:
    before = fingerprint(partial)
    repository = Repository.open(partial)
    checkout = Checkout(repository, tmp_path / "clone")
    small = {"model.py": b"1", "data/täble [1].csv": b"small"}
    assert checkout.show(repository.resolve("HEAD~3")) == ()
    assert files(checkout.path) == small
    (note,) = checkout.show(repository.resolve("HEAD~2"))
    assert note == "1 file is not in the repository and left out (data/täble [1].csv)"
    assert files(checkout.path) == {"model.py": b"2", "gone.txt": b"x"}
    (checkout.path / "model.py").write_text("changed by a probe")
    (note,) = checkout.show(repository.resolve("HEAD~1"))
    assert note.startswith("2 files are not in the repository")
    assert files(checkout.path) == {"model.py": b"2"}
    assert checkout.show(repository.resolve("HEAD~3")) == ()
    assert files(checkout.path) == small
    assert fingerprint(partial) == before


def test_a_name_that_is_no_text_is_left_out_as_well(tmp_path: Path) -> None:
    whole = Repo(tmp_path / "whole")
    (whole.path / os.fsdecode(b"caf\xe9.csv")).write_text(LARGE)
    whole.commit("large", {"model.py": "1"})
    whole.git("config", "uploadpack.allowFilter", "true")
    whole.git("clone", "-q", "--bare", "--filter=blob:limit=1k", whole.path.as_uri(), str(tmp_path / "partial"))
    repository = Repository.open(tmp_path / "partial")
    checkout = Checkout(repository, tmp_path / "clone")
    (note,) = checkout.show(repository.resolve("HEAD"))
    assert note == r"1 file is not in the repository and left out (caf\xe9.csv)"
    assert files(checkout.path) == {"model.py": b"1"}


def test_a_commit_whose_code_is_not_there_is_refused_by_name(partial: Path, tmp_path: Path) -> None:
    repository = Repository.open(partial)
    checkout = Checkout(repository, tmp_path / "clone")
    with pytest.raises(GitError, match=r"generated\.py is not in the repository"):
        checkout.show(repository.resolve("HEAD"))
