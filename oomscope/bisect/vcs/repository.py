"""Reads the history of a repository: revisions, the line of commits between two of them, and files as they stood.

GitPython reads it; nothing here writes. git itself says where a repository begins, what a revision means (GitPython's
rules differ), and what lies at one path in every commit of a line (GitPython would parse the directories of each).

The line from good to bad is that of first parents, along which each commit contains the one before it. What a merge
brought in is a line of its own (:func:`Repository.merged_line`).
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from oomscope.bisect.vcs.git import Git, NoGitError, error_line, reading
from oomscope.bisect.vcs.ranges import checked_revision
from oomscope.errors import GitError
from oomscope.files import real_path

if TYPE_CHECKING:
    import git

_DAY_S = 86_400
_KEPT = 16
"""Answers of each kind that are remembered: the lines of the same few commits are compared again and again."""
_ABSOLUTE = ("rev-parse", "--path-format=absolute")
ABBREVIATED = 10
"""Characters of a hash shown to people."""


@dataclass(frozen=True, kw_only=True)
class Commit:
    """One commit's header."""

    hash: str
    tree: str
    parents: tuple[str, ...]
    author: str
    date: str
    """Author date, ISO 8601; empty where it lies beyond the year 9999."""
    subject: str

    @property
    def short(self) -> str:
        """The beginning of the hash, for people."""
        return self.hash[:ABBREVIATED]

    @property
    def title(self) -> str:
        """Short hash and subject, for people."""
        return f"{self.short} {self.subject}"

    @property
    def is_merge(self) -> bool:
        """Whether it has more than one parent."""
        return len(self.parents) > 1


@dataclass(frozen=True, kw_only=True)
class CommitLine:
    """Commits in order, each containing the one before."""

    base: Commit
    """The good end, which the first commit contains."""
    commits: tuple[Commit, ...]
    """All commits after ``base``, oldest first; the last one is the bad end."""
    touching: frozenset[str] | None = None
    """Hashes of the commits that touch the chosen paths; None where none were chosen."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Repository:
    """A repository that is only read.

    Args:
        path: the directory that the user named: a work tree, a directory in one, or a bare repository.
        common: git's own directory, shared by all work trees.
        own: git's own directory of the work tree that was named, which has its HEAD.
        is_shallow: history is cut off somewhere.
    """

    path: Path
    common: Path
    own: Path
    is_shallow: bool

    @classmethod
    def open(cls, path: Path) -> Repository:
        """Return the repository at or above ``path``.

        Raises:
            GitError: there is none, git cannot read it, or GitPython cannot.
        """
        if not path.is_dir():
            raise GitError("is not a directory", where=str(path), remedy="give --repo a git repository")
        git = Git(path, _spellings(path))
        try:
            found = git.text(*_ABSOLUTE, "--git-common-dir", "--is-shallow-repository", "--show-object-format")
            own = git.text(*_ABSOLUTE, "--git-dir")
        except NoGitError:
            raise
        except GitError as error:
            raise GitError(error.message, where=str(path), remedy="give --repo a git repository") from None
        common, shallow, names = found.rsplit("\n", 2)
        if names == "sha256":
            raise GitError(
                "its objects have SHA-256 names, which GitPython cannot read",
                where=str(path),
                remedy="give --repo a repository with SHA-1 names",
            )
        return cls(path.absolute(), Path(common), Path(own), shallow == "true")

    @property
    def trusted_git(self) -> Git:
        """Git where it reads the repository, whoever owns that."""
        return Git(self.common, (self.common, *_spellings(self.path)))

    @property
    def name(self) -> str:
        """Name of the repository for people: its directory."""
        return self.common.parent.name if self.common.name == ".git" else self.common.name.removesuffix(".git")

    @property
    def inside(self) -> str:
        """The folder that was named, from the root of its work tree, with slashes; empty for the root itself.

        Raises:
            GitError: git cannot say.
        """
        try:
            return Git(self.path, _spellings(self.path)).text("rev-parse", "--show-prefix").removesuffix("/")
        except NoGitError:
            raise
        except GitError:  # a bare repository, or git's own directory
            return ""

    @property
    def top(self) -> Path:
        """The folder of the work tree that was named, or that the named folder lies in; the repository without one."""
        try:
            return Path(Git(self.path, _spellings(self.path)).text(*_ABSOLUTE, "--show-toplevel"))
        except GitError:
            return self.common

    def resolve(self, revision: str) -> Commit:
        """Return the commit that ``revision`` names; ``HEAD`` and ``@`` are those of the work tree that was named.

        Raises:
            GitError: there is no such commit.
        """
        checked_revision(revision)
        wanted = ("--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        with reading(self.own) as repo:
            status, found, stderr = repo.git.rev_parse(*wanted, with_extended_output=True, with_exceptions=False)
            if status == 0:
                return self._header(_commit(repo, found))
        cut = "; the clone is shallow: run git fetch --unshallow" if self.is_shallow else ""
        why = f" ({error_line(stderr, status)})" if stderr else ""
        raise GitError(
            f"no such commit{why}", where=f"{self.path}: {revision}", remedy=f"give a commit, tag or branch{cut}"
        )

    def read_headers(self, hashes: Iterable[str]) -> list[Commit]:
        """Return the headers of the commits ``hashes``, in that order."""
        with reading(self.common) as repo:
            return [self._header(_commit(repo, name)) for name in hashes]

    def contains(self, descendant: Commit, ancestor: Commit) -> bool:
        """Return whether ``ancestor`` is ``descendant`` or one of its ancestors."""
        with reading(self.common) as repo:
            return repo.is_ancestor(_commit(repo, ancestor.hash), _commit(repo, descendant.hash))

    def line(self, good: Commit, bad: Commit, paths: Sequence[str] = ()) -> CommitLine:
        """Return the line of first parents from ``good`` to ``bad``, and which of its commits touch ``paths``.

        Where ``good`` lies on a branch that was merged, the line goes from it to the merge that brought it in: what
        the first parents before that merge contain is not what ``good`` contains.

        Raises:
            GitError: ``good`` is no ancestor of ``bad``, they are the same, a shallow clone lacks part of the line, or
                nothing between them touches ``paths``.
        """
        self._check_order(good, bad)
        walked = self._first_parents(good, bad)
        touching = self._touching(good, bad, paths)
        if touching is not None and not touching:
            raise GitError(
                "no commit between good and bad touches them",
                where=f"{self.path}: -- {' '.join(paths)}",
                remedy="give paths from the root of the repository",
            )
        if good.hash in walked[0].parents[:1]:
            return CommitLine(base=good, commits=tuple(walked), touching=touching)
        commits = walked[bisect_left(walked, True, key=lambda commit: self.contains(commit, good)) :]
        note = f"{good.short} lies on a merged branch; {commits[0].short} brought it into the line, which begins there"
        if touching is not None:
            touching |= {commits[0].hash}  # earlier commits of the line came with it
        return CommitLine(base=good, commits=tuple(commits), touching=touching, notes=(note,))

    def merged_line(self, merge: Commit, parent: int, good: Commit, paths: Sequence[str] = ()) -> CommitLine | None:
        """Return the line that ``merge`` brought to ``good`` by its parent number ``parent`` (from 0).

        It ends with the merge itself, and begins where its first parents leave the history of ``good``, the commit
        before the merge on the line that is searched. None where that parent was there already.

        Raises:
            GitError: it never meets that history, or a shallow clone lacks where.
        """
        tip = self.parent(merge, parent)
        if self.contains(good, tip):
            return None
        walked = self._first_parents(good, tip)
        if not walked[0].parents:
            raise GitError(
                "it shares no history with the good end",
                where=tip.short,
                remedy="search it by itself, or give --first-parent",
            )
        base = self.parent(walked[0], 0)
        touching = self._touching(good, tip, paths)
        if touching is not None:
            touching |= {merge.hash}
        return CommitLine(base=base, commits=(*walked, merge), touching=touching)

    def between(self, good: Sequence[Commit], bad: Commit) -> list[Commit]:
        """Return all commits that ``bad`` contains and none of ``good`` does, parents before children."""
        excluded = [f"^{commit.hash}" for commit in good]
        with reading(self.common) as repo:
            names = repo.git.rev_list(bad.hash, *excluded, topo_order=True, reverse=True).split()
        return self.read_headers(names)

    def parent(self, commit: Commit, number: int) -> Commit:
        """Return the header of the parent ``number`` (from 0) of ``commit``."""
        return self.read_headers([commit.parents[number]])[0]

    def days_before(self, commit: Commit, days: int) -> Commit:
        """Return the youngest first parent of ``commit`` that was committed ``days`` days earlier, or before that.

        Where there is none, the oldest one; ``commit`` itself where it has no parent.
        """
        with reading(self.common) as repo:
            until = _commit(repo, commit.hash).committed_date - days * _DAY_S
            names = repo.git.rev_list(commit.hash, first_parent=True, max_count=1, min_age=until).split()
            oldest = names or repo.git.rev_list(commit.hash, first_parent=True).split()[-1:]
        return self.read_headers(oldest)[0]

    def count(self, good: Commit, bad: Commit, *, first_parent: bool = False) -> int:
        """Return ``git rev-list --count good..bad``: with ``first_parent`` the commits of the line alone."""
        with reading(self.common) as repo:
            return int(repo.git.rev_list(f"{good.hash}..{bad.hash}", count=True, first_parent=first_parent))

    def differing(self, before: Commit, after: Commit) -> list[str]:
        """Return the paths of the files that differ between two commits.

        Raises:
            GitError: git lacks one of their folders.
        """
        return self.trusted_git.listed(
            "diff-tree", "-r", "-z", "--name-only", "--no-renames", before.hash, after.hash, "--"
        )

    def objects_at(self, commits: Sequence[Commit], path: str) -> list[str]:
        """Return the hash of what lies at ``path`` in each of ``commits``; empty where nothing does."""
        wanted = tuple(f"{commit.hash}:{path}" for commit in commits)
        return list(_objects(self.trusted_git, wanted))

    def read_file(self, commit: Commit, path: str) -> bytes | None:
        """Return the content of the file ``path`` at ``commit``; None where there is no such file.

        Raises:
            GitError: it is a symbolic link, or an object is missing.
        """
        return _content(self.common, commit, path)

    def _touching(self, after: Commit, until: Commit, paths: Sequence[str]) -> frozenset[str] | None:
        """Return the hashes of the commits of a line that touch ``paths``; None where there are no paths."""
        return frozenset(each.hash for each in self._first_parents(after, until, paths)) if paths else None

    def _first_parents(self, after: Commit, until: Commit, paths: Sequence[str] = ()) -> list[Commit]:
        """Return the commits after ``after`` up to ``until`` along first parents."""
        with reading(self.common) as repo:
            found = repo.iter_commits(f"{after.hash}..{until.hash}", paths, first_parent=True, reverse=True)
            walked = [self._header(commit) for commit in found]
        if not paths and walked[0].hash in self._cut:
            raise GitError("this shallow clone ends here", where=walked[0].short, remedy="run git fetch --unshallow")
        return walked

    def _header(self, commit: git.Commit) -> Commit:
        try:
            date = commit.authored_datetime.isoformat()
        except (ValueError, OverflowError):
            date = ""
        return Commit(
            hash=commit.hexsha,
            tree=commit.tree.hexsha,
            parents=() if commit.hexsha in self._cut else tuple(parent.hexsha for parent in commit.parents),
            author=commit.author.name or "",
            date=date,
            subject=_subject(str(commit.message)),
        )

    @cached_property
    def _cut(self) -> frozenset[str]:
        """The commits of a shallow clone whose parents it lacks (gitrepository-layout(5), ``shallow``)."""
        return frozenset((self.common / "shallow").read_text().split()) if self.is_shallow else frozenset()

    def _check_order(self, good: Commit, bad: Commit) -> None:
        where = f"{self.path}: {good.short}..{bad.short}"
        if good.hash == bad.hash:
            raise GitError("good and bad are the same commit", where=where, remedy="give two different commits")
        if self.contains(bad, good):
            return
        if self.is_shallow:
            raise GitError(
                "this shallow clone does not reach back from bad to good",
                where=where,
                remedy="run git fetch --unshallow",
            )
        if self.contains(good, bad):
            raise GitError("good is newer than bad", where=where, remedy="swap them")
        with reading(self.common) as repo:
            bases = repo.merge_base(_commit(repo, good.hash), _commit(repo, bad.hash))
            names = [commit.hexsha for commit in bases]
        ancestor = f"their common ancestor {names[0][:ABBREVIATED]} may serve as the good end" if names else ""
        raise GitError("good is not an ancestor of bad", where=where, remedy=ancestor or "give an ancestor")


def _subject(message: str) -> str:
    """Return the first paragraph of ``message`` in one line, as git's ``%s`` (git-log(1), PRETTY FORMATS)."""
    lines = dropwhile(lambda line: not line, (line.rstrip(" \t\r") for line in message.split("\n")))
    return " ".join(takewhile(bool, lines))


def _commit(repo: git.Repo, name: str) -> git.Commit:
    """Return the commit with the full hash ``name``; it is read when it is first asked for something."""
    from git import Commit as Named

    return Named(repo, bytes.fromhex(name))


@lru_cache(maxsize=_KEPT)
def _content(directory: Path, commit: Commit, path: str) -> bytes | None:
    """Return what :meth:`Repository.read_file` does; what a commit holds never changes."""
    with reading(directory) as repo:
        try:
            found = _commit(repo, commit.hash).tree.join(path)
        except KeyError:
            return None
        if found.type != "blob":
            return None
        try:
            content = bytes(found.data_stream.read())
        except ValueError:
            raise left_out(path, commit.hash) from None
        if found.mode == found.link_mode:
            raise GitError(
                f"is a symbolic link to {os.fsdecode(content)}",
                where=f"{commit.short}:{path}",
                remedy="give the file that it points to",
            )
        return content


@lru_cache(maxsize=_KEPT)
def _objects(git: Git, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Return the hash of each of ``wanted``, as ``commit:path``; empty where there is nothing."""
    lines = "".join(f"{name}\n" for name in wanted)
    try:
        answer = git.output("cat-file", "--batch-check=%(objectname)", stdin=os.fsencode(lines))
    except NoGitError:
        raise
    except GitError:  # git wants the content as well, which a partial clone may lack; the folders have the hash
        with reading(git.directory) as repo:
            return tuple(_object(repo, name) for name in wanted)
    rows = answer.decode(errors="replace").splitlines()
    return tuple("" if row.endswith(" missing") else row for row in rows)


def _object(repo: git.Repo, wanted: str) -> str:
    commit, _, path = wanted.partition(":")
    try:
        found: str = _commit(repo, commit).tree.join(path).hexsha
    except KeyError:
        return ""
    return found


def left_out(path: str, commit: str) -> GitError:
    """Return the error of a file of ``commit`` whose content the repository lacks."""
    remedy = "fetch what the partial clone left out: git fetch --refetch --no-filter"
    return GitError(f"{path} is not in the repository", where=commit, remedy=remedy)


def _spellings(path: Path) -> tuple[Path, ...]:
    return tuple(dict.fromkeys((path.absolute(), real_path(path))))
