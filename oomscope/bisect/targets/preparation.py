"""Commits that need a repair (``--fixup``), a build (``--setup``) or files that git does not track (``--link``).

A repair is a patch, or a command run in the checkout: ``RANGE: PATCH-FILE or COMMAND``. A link is a symbolic one to the
user's checkout, so that terabytes cost nothing. All of it changes the disposable clone alone.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path, PurePosixPath

from oomscope.bisect.run.experiment import Experiment, Workplace, in_checkout
from oomscope.bisect.run.identity import digest_of
from oomscope.bisect.search.measured import Untestable
from oomscope.bisect.targets.subjects import ChangedSubject, ConfigSubject, Subject, place_of, seen_from
from oomscope.bisect.vcs.checkouts import retire
from oomscope.bisect.vcs.git import NO_ROOM, Git, no_room, reading
from oomscope.bisect.vcs.repository import Commit, Repository
from oomscope.bisect.vcs.source_text import Source
from oomscope.errors import GitError, TargetError, UsageError
from oomscope.files import real_path
from oomscope.printable import quoted

FIXUP, SETUP, LINK = "--fixup", "--setup", "--link"
TIMEOUT_S = 1800.0
_EVERYWHERE = "*"
_PATCH_SUFFIXES = {".patch", ".diff"}
_RANGE_REMEDY = "write 'RANGE: PATCH-FILE' or 'RANGE: COMMAND', where RANGE is A..B, one revision or *"
_MOST_FILES = 10_000
"""Files of a linked folder whose size and time are compared."""


@dataclass(frozen=True, kw_only=True)
class Fixup:
    """One repair as the user wrote it."""

    range: str
    """``A..B``, a revision, or ``*`` for every commit."""
    command: str = ""
    """Command for ``sh``, run in the root of the checkout; empty where there is a patch."""
    patch: bytes = b""
    """Patch for ``git apply``; empty where there is a command."""
    file: Path | None = None
    """The file of the patch."""

    @classmethod
    def parse(cls, text: str, folder: Path = Path()) -> Fixup:
        """Return the repair that ``text`` names; a patch file, whose path counts from ``folder``, is read here.

        What ends in ``.patch`` or ``.diff``, and any file that exists, is a patch; all else is a command.

        Raises:
            UsageError: there is no range or no repair, or the patch cannot be read.
        """
        where, colon, repair = (part.strip() for part in text.partition(":"))
        if not (colon and where and repair):
            raise UsageError(f"{quoted(text)} is not a repair", where=FIXUP, remedy=_RANGE_REMEDY)
        file = folder / Path(repair).expanduser()
        if file.suffix not in _PATCH_SUFFIXES and not os.path.isfile(file):  # noqa: PTH113 # commands may be long
            return cls(range=where, command=repair)
        try:
            return cls(range=where, patch=file.read_bytes(), file=file.absolute())
        except OSError as error:
            why = "no such patch file" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
            raise UsageError(why, where=f"{FIXUP} {repair}", remedy=_RANGE_REMEDY) from None

    @property
    def name(self) -> str:
        """Identifies what it does: part of the key of a result."""
        return hashlib.sha256(self.patch or self.command.encode()).hexdigest()

    def __str__(self) -> str:
        return f"{self.range}: {self.file or self.command}"

    def commits(self, repository: Repository) -> frozenset[str] | None:
        """Return the hashes of the commits that it repairs; None for all.

        Raises:
            GitError: there is no such revision.
            UsageError: the range holds no commit, or the file is no patch.
        """
        if self.file is not None:
            try:
                repository.trusted_git.output("apply", "--numstat", "-", stdin=self.patch)
            except GitError as error:
                remedy = f"give the output of git diff; to run the file write 'sh {self.file}'"
                raise UsageError(f"is not a patch ({error.message})", where=f"{FIXUP} {self}", remedy=remedy) from None
        if self.range == _EVERYWHERE:
            return None
        first, dots, last = self.range.partition("..")
        if not dots:
            return frozenset({repository.resolve(self.range).hash})
        if last.startswith("."):
            raise UsageError("names a symmetric difference", where=f"{FIXUP} {self}", remedy=_RANGE_REMEDY)
        after, until = repository.resolve(first or "HEAD"), repository.resolve(last or "HEAD")
        with reading(repository.common) as repo:
            names = repo.git.rev_list(f"{after.hash}..{until.hash}").split()
        if not names:
            raise UsageError("no commit lies in this range", where=f"{FIXUP} {self}", remedy=_RANGE_REMEDY)
        return frozenset(names)

    def apply(self, place: Workplace, timeout_s: float) -> None:
        """Repair the checkout at ``place``; a commit that already has the patch is left as it is.

        A patch whose context has changed is applied if one line of context on each side is found.

        Raises:
            TargetError: the patch does not apply.
            CommandError: the command failed, or took longer than ``timeout_s`` seconds.
            StoppedError: the result is not needed any more.
            OutOfTimeError: the deadline of the search has passed.
        """
        if not self.patch:
            place.run(self.command, name=f"{FIXUP} {self}", timeout_s=timeout_s)
            return
        git = Git(place.directory, (place.directory, place.directory / ".git"))
        failures = []
        for context in ("-C3", "-C1"):
            for attempt in ((), ("--reverse", "--check")):
                try:
                    git.output("apply", "--whitespace=nowarn", context, *attempt, "-", stdin=self.patch)
                except GitError as error:
                    failures.append(error.message)
                else:
                    return
        remedy = "narrow its range, or give another patch for these commits"
        raise TargetError(f"does not apply: {failures[0]}", where=f"{FIXUP} {self}", remedy=remedy)

    def shell(self, directory: str, root: Path | None = None) -> str:
        """Return the shell command that does this to the checkout ``directory``, run in ``root``."""
        if self.file is not None:
            return f"{shlex.join(['git', '-C', directory, 'apply'])} {_whole(self.file, root)}"
        return in_checkout(directory, self.command)


@dataclass(frozen=True, kw_only=True)
class Link:
    """A file or folder of the user's checkout that every disposable checkout links to."""

    path: PurePosixPath
    """Path of the link, from the root of the repository."""
    target: Path
    """The user's own file or folder."""

    @classmethod
    def resolve(cls, text: str, repository: Repository) -> Link:
        """Return the link that ``text`` names, a path from the folder that is measured.

        Raises:
            UsageError: nothing lies there, or it lies outside the repository.
            GitError: git cannot say where the folder lies.
        """
        target = repository.path / text
        if not target.exists():
            raise UsageError("no such file or folder", where=f"{LINK} {text}", remedy="name a path in your checkout")
        root = real_path(repository.path)
        for _ in PurePosixPath(repository.inside).parts:
            root = root.parent
        place = Path(os.path.normpath(real_path(target.parent) / target.name))
        if not place.is_relative_to(root) or place == root:
            raise UsageError("lies outside the repository", where=f"{LINK} {text}", remedy="name a path inside it")
        return cls(path=PurePosixPath(place.relative_to(root)), target=place)

    def apply(self, workplace: Workplace) -> None:
        """Link to it in a checkout; a commit that has the path keeps its own.

        Raises:
            TargetError: a file of the commit is in the way.
        """
        place = workplace.directory / self.path
        if os.path.lexists(place):
            return
        retire(workplace.directory)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(self.target)
        except OSError as error:
            if error.errno in NO_ROOM:
                raise no_room(f"{self.path} cannot be linked", workplace.directory) from None
            raise TargetError(
                f"cannot be linked: {error.strerror}",
                where=f"{LINK} {self.path}",
                remedy="the commit has a file where the path needs a folder; link another path",
            ) from None

    def shell(self, directory: str, root: Path | None = None) -> str:
        """Return the shell command that does this to the checkout ``directory``, run in ``root``."""
        place = PurePosixPath(directory) / self.path
        folder = shlex.join(["mkdir", "-p", str(place.parent)])
        link = f"ln -s {_whole(self.target, root)} {shlex.quote(str(place))}"
        once = "" if root is None else f"test -e {shlex.quote(str(place))} || "
        return f"{folder} && {once}{link}"

    def state(self) -> str:
        """Return a digest of what lies there: of sizes and times of up to 10,000 files."""
        return digest_of({"path": str(self.path), "files": list(islice(self._files(), _MOST_FILES))})

    def _files(self) -> Iterator[tuple[str, int, int]]:
        for path in self._paths():
            try:
                seen = path.stat()
            except OSError:
                continue
            yield str(path.relative_to(self.target)), seen.st_size, seen.st_mtime_ns

    def _paths(self) -> Iterator[Path]:
        yield self.target
        for folder, folders, names in os.walk(self.target):
            folders.sort()
            yield from (Path(folder, name) for name in sorted(names))


def _whole(path: Path, root: Path | None) -> str:
    """Return ``path`` for a command that is run in ``root`` and enters other folders."""
    near = seen_from(root, path)
    return shlex.quote(near) if Path(near).is_absolute() else f'"$PWD"/{shlex.quote(near)}'


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """What is done to checkouts before they are measured."""

    fixups: tuple[Fixup, ...] = ()
    setup: str = ""
    """Command for ``sh``, run in the root of every checkout, such as the build of an extension."""
    links: tuple[str, ...] = ()
    """Paths of the user's checkout that every checkout links to."""
    timeout_s: float = TIMEOUT_S
    """Seconds that a command may take."""

    def of(self, subject: Subject, repository: Repository) -> Subject:
        """Return ``subject``, whose commits are checkouts, with each prepared in this way.

        Raises:
            GitError: a repair names a revision that is not there.
            UsageError: a repair names no commits, or no patch; a link names nothing; or nothing is checked out.
        """
        if not (self.fixups or self.setup or self.links):
            return subject
        if isinstance(subject, ConfigSubject):
            raise UsageError(
                "not for --config, which reads files without a checkout",
                where=FIXUP if self.fixups else SETUP if self.setup else LINK,
                remedy="leave it out, or measure the code of each commit",
            )
        links = tuple(Link.resolve(text, repository) for text in self.links)
        fixups = tuple((fixup, fixup.commits(repository)) for fixup in self.fixups)
        return Prepared(subject, repository, self, fixups, links)


@dataclass(frozen=True)
class Prepared(ChangedSubject):
    """A subject whose checkouts are linked, repaired and set up, in this order.

    Args:
        preparation: what is asked for.
        fixups: its repairs, each with the hashes of its commits; None for all.
        links: its links.
    """

    preparation: Preparation
    fixups: tuple[tuple[Fixup, frozenset[str] | None], ...]
    links: tuple[Link, ...]

    @cached_property
    def _linked(self) -> list[str]:
        """The state of the links when the search began."""
        return [link.state() for link in self.links]

    def contents(self, commits: Sequence[Commit]) -> list[str]:
        """Return the names that the subject has for the commits, with those of their repairs."""
        names = self.subject.contents(commits)
        return ["+".join((name, *self._names(commit))) for name, commit in zip(names, commits, strict=True)]

    def experiment(self, commit: Commit) -> Experiment | Untestable:
        """Return how ``commit`` is measured once it is prepared; a program that writes to a link gets a remark."""
        found = self.subject.experiment(commit)
        if isinstance(found, Untestable):
            return found
        setup, timeout_s = self.preparation.setup, self.preparation.timeout_s
        done: dict[str, object] = {"fixups": self._names(commit), "setup": setup}
        if self.links:
            done["links"] = self._linked

        def lay_out(place: Path) -> tuple[str, ...]:
            pairs = zip(self.links, self._linked, strict=True)
            written = [link.path for link, state in pairs if link.state() != state]
            remarks = (f"{LINK} {path}: the program wrote there, to your own files" for path in written)
            return (*found.lay_out(place), *remarks)

        def prepare(place: Workplace) -> None:
            for link in self.links:
                link.apply(place)
            for fixup in self._fixups(commit):
                fixup.apply(place, timeout_s)
            if setup:
                place.run(setup, name=SETUP, timeout_s=timeout_s)

        content = replace(found.content, tree=f"{found.content.tree}+{digest_of(done)}")
        return replace(found, content=content, lay_out=lay_out, prepare=prepare)

    def source(self, commit: Commit) -> Source:
        """Return the commit's files, among which a set-up may have put others; nothing where a repair changed them."""
        if self._fixups(commit):
            return Source()
        return Source(self.repository, commit, is_built=bool(self.preparation.setup))

    def commands(self, commit: Commit, root: Path | None = None) -> tuple[str, ...]:
        """Return commands that lay the commit out, prepare it and probe it."""
        *lay_out, probe = self.subject.commands(commit, root)
        place = place_of(self.repository, commit, root)
        setup = [in_checkout(place, self.preparation.setup)] if self.preparation.setup else []
        linked = (link.shell(place, root) for link in self.links)
        return (*lay_out, *linked, *(fixup.shell(place, root) for fixup in self._fixups(commit)), *setup, probe)

    def _fixups(self, commit: Commit) -> tuple[Fixup, ...]:
        return tuple(fixup for fixup, commits in self.fixups if commits is None or commit.hash in commits)

    def _names(self, commit: Commit) -> tuple[str, ...]:
        return tuple(fixup.name for fixup in self._fixups(commit))
