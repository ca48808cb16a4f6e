"""Changes in no commit are found, and no program of the repository's settings runs meanwhile."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from oomscope.bisect.vcs.uncommitted import has_uncommitted_changes
from tests.unit.bisect.repos import Repo, fingerprint

CONTENT = b"weights\n"
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{hashlib.sha256(CONTENT).hexdigest()}\nsize 8\n"


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    repo = Repo(tmp_path / "repo")
    repo.commit("First", {"a.py": "first\n", "lib/b.py": "lib\n"})
    return repo


def touch(file: Path) -> None:
    """Give ``file`` another time, so that git has to look at its content."""
    os.utime(file, (1_600_000_000, 1_600_000_000))


@pytest.mark.parametrize(("name", "key"), [("tr=ap", "clean"), ('tr"ap.x', "process")])
def test_no_filter_of_the_repository_runs(repo: Repo, tmp_path: Path, name: str, key: str) -> None:
    section = name.replace('"', '\\"')
    with (repo.path / ".git" / "config").open("a") as settings:
        settings.write(f'[filter "{section}"]\n\trequired\n\t{key} = touch {tmp_path}/sprung; cat\n')
    (repo.path / ".git" / "info" / "attributes").write_text(f"*.py filter={name}\n")
    touch(repo.path / "a.py")
    before = fingerprint(repo.path)
    assert not has_uncommitted_changes(repo.path)
    assert not (tmp_path / "sprung").exists()
    assert fingerprint(repo.path) == before


def test_no_monitor_of_a_submodule_runs_and_its_changes_count(repo: Repo, tmp_path: Path) -> None:
    inner = Repo(tmp_path / "inner")
    inner.commit("Inner", {"c.py": "inner\n"})
    repo.git("submodule", "--quiet", "add", str(inner.path), "inner")
    repo.commit("Add inner", {})
    module = repo.path / "inner"
    settings = repo.path / ".git" / "modules" / "inner" / "config"
    with settings.open("a") as text:
        text.write(f'[filter "trap"]\n\tclean = touch {tmp_path}/sprung; cat\n')
        text.write(f"[core]\n\tfsmonitor = touch {tmp_path}/sprung\n")
    (settings.parent / "info").mkdir(exist_ok=True)
    (settings.parent / "info" / "attributes").write_text("* filter=trap\n")
    touch(module / "c.py")
    assert not has_uncommitted_changes(repo.path)
    (module / "c.py").write_text("other\n")
    assert has_uncommitted_changes(repo.path / "lib")
    assert not (tmp_path / "sprung").exists()


def test_changes_anywhere_in_the_work_tree_count(repo: Repo) -> None:
    (repo.path / "new.py").write_text("in no commit, and told apart\n")
    assert not has_uncommitted_changes(repo.path)
    (repo.path / "a.py").write_text("other\n")
    assert has_uncommitted_changes(repo.path / "lib")
    repo.git("add", "a.py")
    assert has_uncommitted_changes(repo.path)


def test_a_large_file_is_compared_with_its_pointer(repo: Repo) -> None:
    repo.commit("Weights", {".gitattributes": "*.bin filter=lfs\n", "ün w.bin": POINTER})
    file = repo.path / "ün w.bin"
    file.write_bytes(CONTENT)
    assert not has_uncommitted_changes(repo.path)
    file.write_bytes(b"WEIGHTS\n")
    assert has_uncommitted_changes(repo.path)
    file.unlink()
    assert has_uncommitted_changes(repo.path)
