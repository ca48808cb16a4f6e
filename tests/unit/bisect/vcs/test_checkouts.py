"""A clone shows exactly a commit's files, whatever the last probe did to it, and the repository stays as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomscope.bisect.vcs.checkouts import Checkout
from oomscope.bisect.vcs.repository import Repository
from tests.unit.bisect.repos import Repo, fingerprint


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    made = Repo(tmp_path / "répo with spaces")
    made.commit("first", {"model.py": "one\n", "old/ünï.txt": "", ".gitignore": "*.log\nbuild/\n"})
    made.commit("second", {"model.py": "two\r\n", "old/ünï.txt": None, "new.py": ""})
    return made


def files(path: Path) -> dict[str, bytes]:
    found = (item for item in path.rglob("*") if item.is_file() and ".git" not in item.parts)
    return {str(item.relative_to(path)): item.read_bytes() for item in found if item.name != ".git"}


FIRST = {"model.py": b"one\n", "old/ünï.txt": b"", ".gitignore": b"*.log\nbuild/\n"}
SECOND = {"model.py": b"two\r\n", "new.py": b"", ".gitignore": b"*.log\nbuild/\n"}


@pytest.mark.parametrize("damage", ["lock", "git directory"])
def test_a_damaged_clone_is_replaced(repo: Repo, tmp_path: Path, damage: str) -> None:
    repository = Repository.open(repo.path)
    checkout = Checkout(repository, tmp_path / "clone")
    checkout.show(repository.resolve("HEAD"))
    if damage == "lock":
        (checkout.path / ".git" / "index.lock").touch()
    else:
        (checkout.path / ".git" / "HEAD").write_text("nonsense")
    checkout.show(repository.resolve("HEAD~"))
    assert files(checkout.path) == FIRST


def test_large_files_at_hand_are_laid_out_and_a_probe_may_write_to_them(repo: Repo, tmp_path: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:{0}\nsize {1}\n"
    held, cut, gone = "ab" * 32, "cd" * 32, "ef" * 32
    objects = repo.path / ".git/lfs/objects"
    for name, content in ((held, "weights\n"), (cut, "wei")):
        (objects / name[:2] / name[2:4]).mkdir(parents=True)
        (objects / name[:2] / name[2:4] / name).write_text(content)
    pointers = {f"ün {name[:2]}.bin": pointer.format(name, 8) for name in (held, cut, gone)}
    repo.commit("weights", {".gitattributes": "*.bin filter=lfs\n", "text.bin": "no pointer\n", **pointers})
    before, repository = fingerprint(repo.path), Repository.open(repo.path)
    checkout = Checkout(repository, tmp_path / "clone")
    for _ in range(2):
        (note,) = checkout.show(repository.resolve("HEAD"))
        assert note == "Git LFS pointers without their content: 2 (such as ün cd.bin)"
        shown = files(checkout.path)
        assert (shown["ün ab.bin"], shown["text.bin"]) == (b"weights\n", b"no pointer\n")
        (checkout.path / "ün ab.bin").write_text("written over")
    checkout.show(repository.resolve("HEAD~"))
    assert files(checkout.path) == SECOND
    assert fingerprint(repo.path) == before


def test_a_submodule_name_cannot_lead_out_of_the_repository(repo: Repo, tmp_path: Path) -> None:
    elsewhere = Repo(tmp_path / "elsewhere", bare=True)
    commit = repo.head
    repo.git("update-index", "--add", "--cacheinfo", f"160000,{commit},sub")
    names = f'[submodule "../../../{elsewhere.path.name}"]\n\tpath = sub\n\turl = .\n'
    (repo.path / ".gitmodules").write_text(names)
    repo.git("add", ".gitmodules")
    repo.git("commit", "--quiet", "-m", "trap")
    repository = Repository.open(repo.path)
    (note,) = Checkout(repository, tmp_path / "clone").show(repository.resolve("HEAD"))
    assert "not in the repository's own copy" in note
