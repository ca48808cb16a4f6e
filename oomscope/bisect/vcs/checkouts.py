"""A disposable clone that shows one commit after another. The user's repository is only read.

``git clone --shared`` borrows the objects of the repository instead of copying them and leaves no trace there, unlike
``git worktree``, which registers itself in the repository and locks branches. Submodules and Git LFS files come from
the repository's own copies; nothing is fetched, and what is missing is named.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from oomscope.bisect.vcs.git import Git
from oomscope.bisect.vcs.repository import Commit, Repository, left_out
from oomscope.errors import GitError, MachineUnfitError
from oomscope.files import real_path
from oomscope.printable import printable
from oomscope.probe.process.tempdirs import remove_tree

_CODE = {".py", ".pyi", ".pyx"}
_GITLINK_MODE = "160000"
_SERVE = "git -c safe.directory='*' upload-pack"
_POINTER = re.compile(
    rb"version https://git-lfs\.github\.com/spec/v1\n(?:.+\n)*?oid sha256:([0-9a-f]{64})\nsize (\d+)\n"
)
"""A file of Git LFS (git-lfs, docs/spec.md)."""
_LONGEST_POINTER = 1024
"""Bytes; the specification has pointers stay below."""


@dataclass(frozen=True)
class Checkout:
    """One clone and the commit that it shows."""

    repository: Repository
    path: Path

    def show(self, commit: Commit) -> tuple[str, ...]:
        """Lay out exactly the files of ``commit`` and return what is not as in a full clone, one line each.

        Whatever else lies in the clone (build products, files that the last probe wrote) is removed.

        Raises:
            GitError: the commit cannot be laid out.
            MachineUnfitError: the disk has no room for it.
        """
        if _retired_marker(self.path).exists() or not (self.path / ".git").exists():
            self._clone()
        try:
            absent = self._lay_out(commit)
        except (GitError, MachineUnfitError):
            # A probe may have left the clone in any state, such as with a locked index or full: take a new one.
            self._clone()
            absent = self._lay_out(commit)
        missing = _lay_out_submodules(self._git, commit.hash, self.repository.common / "modules")
        return (*absent, *missing, *_lay_out_large_files(self._git, self.repository.common))

    @property
    def _git(self) -> Git:
        return Git(self.path, (self.path, self.path / ".git"))

    def _clone(self) -> None:
        remove_tree(self.path)
        _retired_marker(self.path).unlink(missing_ok=True)
        source = self.repository.common
        _clone_shared(Git(self.path.parent, (source, self.repository.path)), source, self.path)

    def _lay_out(self, commit: Commit) -> list[str]:
        """Lay out ``commit``; return a line about files that a partial clone left out, if there are any."""
        absent: list[str] = []
        try:
            self._git.output("checkout", "--quiet", "--force", "--detach", commit.hash)
        except GitError:
            absent = _absent_files(self._git, commit.hash)
            if not absent:
                raise
            _lay_out_rest(self._git, commit.hash, absent)
        self._git.output("clean", "--quiet", "--force", "--force", "-d", "-x")
        return (
            [f"files that the partial clone left out: {len(absent)} (such as {printable(absent[0])})"] if absent else []
        )


def _absent_files(git: Git, commit: str) -> list[str]:
    """Return the paths in ``commit`` whose content the repository does not have."""
    rows = [row.partition("\t") for row in git.listed("ls-tree", "-r", "-z", commit)]
    files = [(path, head.split()[2]) for head, _, path in rows if not head.startswith(_GITLINK_MODE)]
    asked = "".join(f"{name}\n" for _, name in files).encode()
    answers = git.output("cat-file", "--batch-check", stdin=asked).decode().splitlines()
    return [path for (path, _), answer in zip(files, answers, strict=True) if answer.endswith(" missing")]


def _lay_out_rest(git: Git, commit: str, absent: Sequence[str]) -> None:
    """Make the work tree and the index those of ``commit`` without the files ``absent``."""
    code = next((path for path in absent if PurePosixPath(path).suffix in _CODE), None)
    if code is not None:
        raise left_out(code, commit)
    git.output("update-ref", "--no-deref", "HEAD", commit)
    git.output("read-tree", "--reset", commit)
    git.output("update-index", "--force-remove", "-z", "--stdin", stdin=os.fsencode("".join(f"{p}\0" for p in absent)))
    git.output("checkout-index", "--all", "--force", "--quiet")


def retire(clone: Path) -> None:
    """Lay the next commit out in a new clone: a command may change more than files (settings, the index)."""
    _retired_marker(clone).touch()


def _retired_marker(clone: Path) -> Path:
    return clone.with_name(f"{clone.name}.retired")


def _lay_out_submodules(git: Git, commit: str, modules: Path) -> list[str]:
    """Clone the submodules of ``commit`` and theirs from ``modules`` (``.git/modules``); return what is missing."""
    missing = []
    for path, wanted, source in _submodules(git, commit, modules):
        target = git.directory / path
        try:
            if source is None or not _is_inside(target, git.directory):
                raise GitError("it is not in the repository's own copy: run git submodule update --init --recursive")
            remove_tree(target)
            _clone_shared(Git(git.directory, (source,)), source, target)
            inner = Git(target, (target, target / ".git"))
            inner.output("checkout", "--quiet", "--force", "--detach", wanted)
            missing += _lay_out_submodules(inner, wanted, source / "modules")
        except GitError as error:
            missing.append(f"submodule {printable(path)} is empty: {error.message}")
    return missing


def submodules_at_hand(repository: Repository, commit: Commit) -> dict[str, Path]:
    """Return the repository's own copies of the submodules of ``commit``, if it has them, by path."""
    found = _submodules(repository.trusted_git, commit.hash, repository.common / "modules")
    return {path: source for path, _, source in found if source is not None}


def _submodules(git: Git, commit: str, modules: Path) -> Iterator[tuple[str, str, Path | None]]:
    """Yield path and commit of each submodule of ``commit``, and its copy in ``modules``; None where it has none."""
    rows = [row.partition("\t") for row in git.listed("ls-tree", "-r", "-z", commit)]
    links = [(path, head.split()[2]) for head, _, path in rows if head.startswith(_GITLINK_MODE)]
    names = _names_by_path(git, commit) if links else {}
    for path, wanted in links:
        source = modules / names.get(path, path)
        yield path, wanted, source if source.is_dir() and _is_inside(source, modules) else None


def _is_inside(path: Path, directory: Path) -> bool:
    """Whether ``path`` lies below ``directory``: names in a commit may hold ``..``, and directories may be links."""
    return real_path(path).is_relative_to(real_path(directory))


def _clone_shared(git: Git, source: Path, target: Path) -> None:
    """Clone ``source``, which is trusted: git would not hand its settings on to the process that serves the clone."""
    shared = ("clone", "--quiet", "--shared", "--no-checkout", "--template=", f"--upload-pack={_SERVE}")
    git.output(*shared, "--", str(source), str(target))


def _names_by_path(git: Git, commit: str) -> dict[str, str]:
    """Return the submodules' names by path, as ``.gitmodules`` has them at ``commit``."""
    pattern = r"^submodule\..*\.path$"
    try:
        listed = git.listed("config", "--blob", f"{commit}:.gitmodules", "--null", "--get-regexp", pattern)
    except GitError:  # the commit has no such file
        return {}
    rows = [row.partition("\n") for row in listed]
    return {path: key.removeprefix("submodule.").removesuffix(".path") for key, _, path in rows}


def _lay_out_large_files(git: Git, common: Path) -> list[str]:
    """Replace Git LFS pointers by their content from ``lfs/objects``; name in one line those whose content is missing.

    git-lfs itself is not called: it is a filter that a repository sets, and it may fetch.
    """
    tracked = git.listed("ls-files", "-z", "--", ":(attr:filter=lfs)")
    missing = [name for name in tracked if not _lay_out_large_file(git.directory / name, common)]
    if not missing:
        return []
    return [f"Git LFS pointers without their content: {len(missing)} (such as {printable(missing[0])})"]


def _lay_out_large_file(file: Path, common: Path) -> bool:
    """Return whether ``file`` now has its content."""
    if file.is_symlink() or not file.is_file() or file.stat().st_size >= _LONGEST_POINTER:
        return True
    pointer = _POINTER.fullmatch(file.read_bytes())
    if pointer is None:
        return True
    name = pointer[1].decode()
    content = common / "lfs" / "objects" / name[:2] / name[2:4] / name
    if not content.is_file() or content.stat().st_size != int(pointer[2]):
        return False
    shutil.copyfile(content, file)  # copied, since a probe may write to it
    return True


def is_content_of(pointer: bytes, file: Path) -> bool:
    """Return whether ``pointer`` is a Git LFS pointer, and ``file`` holds the content that it names."""
    found = _POINTER.fullmatch(pointer)
    if found is None or file.is_symlink() or not file.is_file() or file.stat().st_size != int(found[2]):
        return False
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest() == found[1].decode()
