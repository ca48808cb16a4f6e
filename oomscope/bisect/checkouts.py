"""A disposable clone in which one commit after another is laid out; the user's repository is only read.

``git clone --shared`` borrows the objects of the repository instead of copying them and leaves no trace there, unlike
``git worktree``, which registers itself in the repository and locks branches.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from oomscope.bisect.absent_files import absence, absent_files, lay_out_rest
from oomscope.bisect.commits import Repository
from oomscope.bisect.git import Git
from oomscope.bisect.headers import Commit
from oomscope.bisect.large_files import lay_out_large_files
from oomscope.errors import GitError
from oomscope.files import real_path
from oomscope.printable import printable
from oomscope.probe.process.tempdirs import remove_tree

_GITLINK_MODE = "160000"
_SERVE = "git -c safe.directory='*' upload-pack"


@dataclass(frozen=True)
class Checkout:
    """One clone and the commit that it shows.

    Args:
        repository: where the objects are.
        path: the clone's work tree; made by :meth:`show` when first needed.

    Raises:
        GitError: the repository lies where git cannot borrow objects from.
    """

    repository: Repository
    path: Path

    def __post_init__(self) -> None:
        """Refuse a repository from which git cannot borrow."""
        if "\n" in str(self.repository.common):
            raise GitError(
                "no objects can be borrowed from a path with a line break",
                where=repr(str(self.repository.common)),
                remedy="give the directory another name",
            )

    def show(self, commit: Commit) -> tuple[str, ...]:
        """Lay out exactly the files of ``commit`` and return what is not as in a full clone, one line each.

        Whatever else lies in the clone (build products, files that the last probe wrote) is removed.

        Raises:
            GitError: the commit cannot be laid out.
        """
        if _spent(self.path).exists() or not (self.path / ".git").exists():
            self._clone()
        try:
            absent = self._lay_out(commit)
        except GitError:
            # A probe may have left the clone in any state, such as with a locked index: take a new one.
            self._clone()
            absent = self._lay_out(commit)
        missing = lay_out_submodules(self._git, commit.hash, self.repository.common / "modules")
        return (*absent, *missing, *lay_out_large_files(self._git, self.repository.common))

    @property
    def _git(self) -> Git:
        return Git(self.path, (self.path, self.path / ".git"))

    def _clone(self) -> None:
        remove_tree(self.path)
        _spent(self.path).unlink(missing_ok=True)
        source = self.repository.common
        outside = Git(self.path.parent, (source, self.repository.path))
        _clone_shared(outside, source, self.path)

    def _lay_out(self, commit: Commit) -> tuple[str, ...]:
        """Lay out ``commit`` and return a line about files that are not in the repository, if there are any."""
        absent: list[str] = []
        try:
            self._git.output("checkout", "--quiet", "--force", "--detach", commit.hash)
        except GitError:
            absent = absent_files(self._git, commit.hash)
            if not absent:
                raise
            lay_out_rest(self._git, commit.hash, absent)
        self._git.output("clean", "--quiet", "--force", "--force", "-d", "-x")
        return (absence(absent),) if absent else ()


def spend(clone: Path) -> None:
    """Have the next commit laid out in a new clone: a command may change more than files (settings, the index)."""
    _spent(clone).touch()


def editing(clone: Path) -> Git:
    """Return git in a disposable clone for commands that write objects: only those written by it are at hand."""
    objects = clone / ".git" / "edits"
    objects.mkdir(exist_ok=True)
    return Git(clone, (clone, clone / ".git"), objects)


def lay_out_submodules(git: Git, commit: str, modules: Path) -> list[str]:
    """Clone the submodules of ``commit`` below ``git.directory`` from ``modules``, and theirs; return what is missing.

    Args:
        git: git in the checkout whose submodules they are.
        commit: the commit shown there.
        modules: where the user's repository keeps its submodules' objects (``.git/modules``).
    """
    missing = []
    links = _gitlinks(git, commit)
    names = _names_by_path(git, commit) if links else {}
    for path, wanted in links:
        source, target = modules / names.get(path, path), git.directory / path
        try:
            if not (source.is_dir() and _is_inside(source, modules) and _is_inside(target, git.directory)):
                raise GitError("it is not in the repository's own copy: run git submodule update --init --recursive")
            remove_tree(target)
            _clone_shared(Git(git.directory, (source,)), source, target)
            inner = Git(target, (target, target / ".git"))
            inner.output("checkout", "--quiet", "--force", "--detach", wanted)
            missing += lay_out_submodules(inner, wanted, source / "modules")
        except GitError as error:
            missing.append(f"submodule {printable(path)} is empty: {error.message}")
    return missing


def _spent(clone: Path) -> Path:
    return clone.with_name(f"{clone.name}.spent")


def _is_inside(path: Path, directory: Path) -> bool:
    """Whether ``path`` lies below ``directory``: names in a commit may hold ``..``, and directories may be links."""
    return real_path(path).is_relative_to(real_path(directory))


def _clone_shared(git: Git, source: Path, target: Path) -> None:
    """Clone ``source``, which is trusted: git would not hand its settings on to the process that serves the clone."""
    shared = ("clone", "--quiet", "--shared", "--no-checkout", "--template=", f"--upload-pack={_SERVE}")
    git.output(*shared, "--", str(source), str(target))


def _gitlinks(git: Git, commit: str) -> list[tuple[str, str]]:
    """Return path and commit of every submodule of ``commit``."""
    found = []
    for row in git.listed("ls-tree", "-r", "-z", commit):
        head, tab, path = row.partition("\t")
        if tab and head.startswith(_GITLINK_MODE):
            found.append((path, head.split()[2]))
    return found


def _names_by_path(git: Git, commit: str) -> dict[str, str]:
    """Return the submodules' names by path, as ``.gitmodules`` has them at ``commit``."""
    if not git.text("ls-tree", "--name-only", commit, "--", ".gitmodules"):
        return {}
    pattern = r"^submodule\..*\.path$"
    try:
        listed = git.listed("config", "--blob", f"{commit}:.gitmodules", "--null", "--get-regexp", pattern)
    except GitError:
        return {}
    rows = [row.partition("\n") for row in listed]
    return {path: key.removeprefix("submodule.").removesuffix(".path") for key, _, path in rows}
