"""Reads the history of a repository: revisions, the line of commits between two of them, and files as they stood.

Nothing here writes. The line from good to bad is that of first parents, along which each commit contains the one
before it; what a merge brought in is a line of its own (:func:`Repository.merged_line`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from oomscope.bisect.git import Git
from oomscope.bisect.ranges import checked_revision
from oomscope.errors import GitError

_FIELDS = ("%H", "%T", "%P", "%an", "%aI", "%s")
_FORMAT = "--format=tformat:" + "%x00".join(_FIELDS)
_ABBREVIATED = 10


@dataclass(frozen=True, kw_only=True)
class Commit:
    """One commit's header."""

    hash: str
    tree: str
    parents: tuple[str, ...]
    author: str
    date: str
    """Author date, ISO 8601."""
    subject: str

    @property
    def short(self) -> str:
        """The beginning of the hash, for people."""
        return self.hash[:_ABBREVIATED]

    @property
    def is_merge(self) -> bool:
        """Whether it has more than one parent."""
        return len(self.parents) > 1


@dataclass(frozen=True, kw_only=True)
class Line:
    """Commits in order, each containing the one before."""

    base: Commit
    """The good end: the first parent of the first commit."""
    commits: tuple[Commit, ...]
    """Those that may be at fault, oldest first; the last one is the bad end."""
    unlimited: bool
    """The last commit belongs to the chosen paths (always, where none were chosen)."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Repository:
    """A repository that is only read.

    Args:
        path: the directory that the user named: a work tree, a directory in one, or a bare repository.
        common: git's own directory, shared by all work trees.
        is_shallow: history is cut off somewhere.
    """

    path: Path
    common: Path
    is_shallow: bool

    @classmethod
    def open(cls, path: Path) -> Repository:
        """Return the repository at or above ``path``.

        Raises:
            GitError: there is none, or git cannot read it.
        """
        if not path.is_dir():
            raise GitError("is no directory", where=str(path), remedy="give --repo a git repository")
        try:
            found = Git(path, _spellings(path)).text(
                "rev-parse", "--path-format=absolute", "--git-common-dir", "--is-shallow-repository"
            )
        except GitError as error:
            raise GitError(error.message, where=str(path), remedy="give --repo a git repository") from None
        common, shallow = found.rsplit("\n", 1)
        return cls(path.absolute(), Path(common), shallow == "true")

    @property
    def git(self) -> Git:
        """Git run in the repository's own directory, so that no index or work tree comes into play."""
        return Git(self.common, (self.common, *_spellings(self.path)))

    @property
    def name(self) -> str:
        """What people call the repository: its directory."""
        return self.common.parent.name if self.common.name == ".git" else self.common.name.removesuffix(".git")

    def resolve(self, revision: str) -> Commit:
        """Return the commit that ``revision`` names; ``HEAD`` and ``@`` are those of the work tree that was named.

        Raises:
            GitError: there is no such commit.
        """
        checked_revision(revision)
        git = Git(self.path, self.git.trusted)
        try:
            found = git.text("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        except GitError as error:
            cut = "; the clone is shallow: run git fetch --unshallow" if self.is_shallow else ""
            said = "" if error.message.startswith("git: status") else f" ({error.message})"
            raise GitError(
                f"no such commit{said}", where=f"{self.path}: {revision}", remedy=f"give a commit, tag or branch{cut}"
            ) from None
        return self.read_headers([found])[0]

    def read_headers(self, hashes: Iterable[str]) -> list[Commit]:
        """Return the headers of the commits ``hashes``, in that order."""
        wanted = "".join(f"{name}\n" for name in hashes)
        if not wanted:
            return []
        return _parse(self.git.output("log", "--no-walk=unsorted", "--stdin", "-z", _FORMAT, stdin=wanted.encode()))

    def contains(self, descendant: Commit, ancestor: Commit) -> bool:
        """Return whether ``ancestor`` is ``descendant`` or one of its ancestors."""
        return self.git.succeeds("merge-base", "--is-ancestor", ancestor.hash, descendant.hash)

    def line(self, good: Commit, bad: Commit, paths: Sequence[str] = ()) -> Line:
        """Return the line of first parents from ``good`` to ``bad``, of which ``paths`` keeps those that touch them.

        ``bad`` is always the last, also where it touches none of ``paths``. Where ``good`` lies on a branch that was
        merged, the line begins where that branch left it.

        Raises:
            GitError: ``good`` is no ancestor of ``bad``, or they are the same.
        """
        self._check_order(good, bad)
        walked = self._first_parents(good, bad)
        first = walked[0]
        base = self.read_headers([first.parents[0]])[0] if first.parents else good
        notes = []
        if base.hash != good.hash:
            notes.append(
                f"{good.short} lies on a merged branch; the search begins where it left the line, at {base.short}"
            )
        commits = walked
        if paths:
            touching = {commit.hash for commit in self._first_parents(good, bad, paths)}
            commits = [commit for commit in walked if commit.hash in touching or commit is walked[-1]]
            unlimited = walked[-1].hash in touching
        else:
            unlimited = True
        return Line(base=base, commits=tuple(commits), unlimited=unlimited, notes=tuple(notes))

    def merged_line(self, merge: Commit, parent: int, paths: Sequence[str] = ()) -> Line | None:
        """Return the line that ``merge`` brought in by its parent number ``parent`` (from 1; 0 is the line it is on).

        None where that parent was there already.
        """
        mainline, tip = self.read_headers([merge.parents[0], merge.parents[parent]])
        if self.contains(mainline, tip):
            return None
        walked = self._first_parents(mainline, tip)
        if not walked[0].parents:
            return None
        base = self.read_headers([walked[0].parents[0]])[0]
        touching = {commit.hash for commit in self._first_parents(mainline, tip, paths)} if paths else None
        commits = [commit for commit in walked if touching is None or commit.hash in touching or commit is walked[-1]]
        return Line(base=base, commits=tuple(commits), unlimited=touching is None or tip.hash in touching)

    def between(self, after: Commit, until: Commit) -> list[Commit]:
        """Return the commits of the line after ``after`` up to and with ``until``, oldest first."""
        return self._first_parents(after, until)

    def objects_at(self, commits: Sequence[Commit], path: str) -> list[str]:
        """Return the hash of what lies at ``path`` in each of ``commits``; empty where nothing does."""
        wanted = "".join(f"{commit.hash}:{path}\n" for commit in commits)
        answer = self.git.output("cat-file", "--batch-check=%(objectname)", stdin=wanted.encode())
        lines = answer.decode(errors="replace").splitlines()
        return ["" if line.endswith(" missing") else line for line in lines]

    def read_file(self, commit: Commit, path: str) -> bytes | None:
        """Return the content of the file ``path`` at ``commit``; None where there is no such file."""
        found = self.objects_at([commit], path)[0]
        if not found or self.git.text("cat-file", "-t", found) != "blob":
            return None
        return self.git.output("cat-file", "blob", found)

    def _first_parents(self, after: Commit, until: Commit, paths: Sequence[str] = ()) -> list[Commit]:
        limits = ["--", *paths]
        answer = self.git.output(
            "log", "-z", "--first-parent", "--reverse", _FORMAT, until.hash, f"^{after.hash}", *limits
        )
        return _parse(answer)

    def _check_order(self, good: Commit, bad: Commit) -> None:
        where = f"{self.path}: {good.short}..{bad.short}"
        if good.hash == bad.hash:
            raise GitError("good and bad are the same commit", where=where, remedy="give two different commits")
        if self.contains(bad, good):
            return
        if self.is_shallow:
            raise GitError(
                "no way from bad back to good in this shallow clone", where=where, remedy="run git fetch --unshallow"
            )
        if self.contains(good, bad):
            raise GitError("good is younger than bad", where=where, remedy="swap them")
        bases = self.git.text("merge-base", good.hash, bad.hash) if self._related(good, bad) else ""
        remedy = f"their common ancestor {bases[:_ABBREVIATED]} may do as the good end" if bases else "give an ancestor"
        raise GitError("good is no ancestor of bad", where=where, remedy=remedy)

    def _related(self, good: Commit, bad: Commit) -> bool:
        return self.git.succeeds("merge-base", good.hash, bad.hash)


def _parse(answer: bytes) -> list[Commit]:
    """Return the commits that git printed in ``_FORMAT`` with ``-z``."""
    values = answer.decode(errors="replace").split("\0")[:-1]
    rows = [values[start : start + len(_FIELDS)] for start in range(0, len(values), len(_FIELDS))]
    return [
        Commit(hash=name, tree=tree, parents=tuple(parents.split()), author=author, date=date, subject=subject)
        for name, tree, parents, author, date, subject in rows
    ]


def _spellings(path: Path) -> tuple[Path, ...]:
    return tuple(dict.fromkeys((path.absolute(), path.resolve())))
