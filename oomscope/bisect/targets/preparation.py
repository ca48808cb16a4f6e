"""Commits that need a repair (``--fixup``), a build (``--setup``) or files that git does not track (``--link``).

A repair is a patch, or a command run in the checkout: ``RANGE: PATCH-FILE or COMMAND``. It changes the disposable clone
alone, which the next commit finds clean.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from oomscope.bisect.run.experiment import Experiment, Untestable
from oomscope.bisect.run.identity import digest_of
from oomscope.bisect.run.workplace import Workplace, in_checkout
from oomscope.bisect.targets.links import NAME as LINK
from oomscope.bisect.targets.links import Link, written_to
from oomscope.bisect.targets.subjects import ConfigSubject, Subject
from oomscope.bisect.vcs.checkouts import editing
from oomscope.bisect.vcs.commits import Commit
from oomscope.bisect.vcs.git import Git, reading
from oomscope.bisect.vcs.repository import Repository
from oomscope.bisect.vcs.source_text import CommitSource, NoSource, Source
from oomscope.errors import GitError, TargetError, UsageError

if TYPE_CHECKING:
    from oomscope.config.schema import Config


SETUP = "--setup"
TIMEOUT_S = 1800.0


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What is done in every checkout before it is measured, such as the build of an extension."""

    command: str
    """For ``sh``, run in the root of the checkout."""
    timeout_s: float = TIMEOUT_S


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """What is done to checkouts before they are measured."""

    fixups: tuple[Fixup, ...] = ()
    setup: Setup | None = None
    links: tuple[str, ...] = ()
    """Paths of the user's checkout that every checkout links to."""
    timeout_s: float = TIMEOUT_S
    """How long the command of a repair may take, in seconds."""

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.fixups or self.setup or self.links)

    def of(self, subject: Subject, repository: Repository) -> Subject:
        """Return ``subject``, whose commits are checkouts, with each made ready in this way.

        Args:
            subject: what is measured.
            repository: where the commits are.

        Raises:
            GitError: a repair names a revision that is not there.
            UsageError: a repair names no commits, or no patch; a link names nothing; or nothing is checked out.
        """
        if not self:
            return subject
        if isinstance(subject, ConfigSubject):
            raise UsageError(
                "a repair, a set-up or a link of what is only read",
                where=NAME if self.fixups else SETUP if self.setup else LINK,
                remedy="leave it out, or measure the code of each commit: nothing is checked out for --config",
            )
        linked = tuple(Link.resolve(text, repository) for text in self.links)
        fixups = Fixups.resolve(self.fixups, repository)
        return Prepared(subject, repository, fixups, self.setup, self.timeout_s, linked)


@dataclass(frozen=True)
class Prepared:
    """A subject whose checkouts are repaired and set up.

    Args:
        subject: what of each commit is measured.
        repository: where the commits are.
        fixups: the repairs.
        setup: what is run in each; None for nothing.
        timeout_s: how long the command of a repair may take, in seconds.
        links: what each checkout links to.
    """

    subject: Subject
    repository: Repository
    fixups: Fixups
    setup: Setup | None
    timeout_s: float
    links: tuple[Link, ...] = ()

    @cached_property
    def _linked(self) -> list[str]:
        """What lay at the links when the search began."""
        return [link.state() for link in self.links]

    def _lay_out(self, experiment: Experiment, place: Path) -> tuple[str, ...]:
        """Lay the commit out; of links that a program has written to by then there is a remark."""
        written = (f"{LINK} {path}: the program wrote there, to your own files" for path in self._written())
        return (*experiment.lay_out(place), *written)

    def _written(self) -> list[str]:
        return written_to(self.links, self._linked)

    def check(self, end: Commit) -> None:
        """Check ``end`` as the subject does."""
        self.subject.check(end)

    def contents(self, commits: Sequence[Commit]) -> list[str]:
        """Return the names that the subject has for the commits, with those of their repairs."""
        names = self.subject.contents(commits)
        return ["+".join((name, *self._names(commit))) for name, commit in zip(names, commits, strict=True)]

    def experiment(self, commit: Commit) -> Experiment | Untestable:
        """Return how ``commit`` is measured once it is ready."""
        found = self.subject.experiment(commit)
        if isinstance(found, Untestable):
            return found
        fixups = self.fixups.of(commit)
        done: dict[str, object] = {"fixups": self._names(commit), "setup": self.setup.command if self.setup else None}
        if self.links:
            done["links"] = self._linked
        content = replace(found.content, tree=f"{found.content.tree}+{digest_of(done)}")
        return replace(
            found,
            content=content,
            lay_out=partial(self._lay_out, found),
            prepare=lambda place: self._prepare(place, fixups),
        )

    def config(self, commit: Commit) -> Config | None:
        """Return the configuration that the subject has for ``commit``."""
        return self.subject.config(commit)

    def source(self, commit: Commit) -> Source:
        """Return the commit's files, among which a set-up may have put others; nothing where a repair changed them."""
        if self.fixups.of(commit):
            return NoSource()
        return CommitSource(self.repository, commit, is_built=self.setup is not None)

    def commands(self, commit: Commit) -> tuple[str, ...]:
        """Return commands that lay the commit out, make it ready and probe it."""
        *lay_out, probe = self.subject.commands(commit)
        place = f"{self.repository.name}-{commit.short}"
        setup = [in_checkout(place, self.setup.command)] if self.setup else []
        linked = (link.shell(place) for link in self.links)
        return (*lay_out, *linked, *(fixup.shell(place) for fixup in self.fixups.of(commit)), *setup, probe)

    def _names(self, commit: Commit) -> tuple[str, ...]:
        return tuple(fixup.name for fixup in self.fixups.of(commit))

    def _prepare(self, place: Workplace, fixups: Sequence[Fixup]) -> None:
        for link in self.links:
            link.apply(place)
        for fixup in fixups:
            fixup.apply(place, self.timeout_s)
        if self.setup is not None:
            place.run(self.setup.command, name=SETUP, timeout_s=self.setup.timeout_s)


NAME = "--fixup"
EVERYWHERE = "*"
_PATCH_SUFFIXES = {".patch", ".diff"}
_APPLY = ("apply", "--whitespace=nowarn")
_PREIMAGES = re.compile(rb"^index ([0-9a-f]+)\.\.", re.MULTILINE)
_RANGE_REMEDY = "write 'RANGE: PATCH-FILE' or 'RANGE: COMMAND', where RANGE is A..B, one revision or *"


@dataclass(frozen=True, kw_only=True)
class Fixup:
    """One repair as the user wrote it."""

    range: str
    """``A..B``, a revision, or ``*`` for every commit."""
    command: str = ""
    """For ``sh``, run in the root of the checkout; empty where there is a patch."""
    patch: bytes = b""
    """What ``git apply`` takes; empty where there is a command."""
    file: Path | None = None
    """Where the patch lies."""

    @classmethod
    def parse(cls, text: str) -> Fixup:
        """Return the repair that ``text`` names; a patch file is read here.

        What ends in ``.patch`` or ``.diff``, and any file that exists, is a patch; all else is a command.

        Raises:
            UsageError: there is not a range or no repair, or the patch cannot be read.
        """
        where, colon, repair = (part.strip() for part in text.partition(":"))
        if not (colon and where and repair):
            raise UsageError(f"{text!r} is not a repair", where=NAME, remedy=_RANGE_REMEDY)
        file = Path(repair).expanduser()
        if not (file.suffix in _PATCH_SUFFIXES or _is_file(file)):
            return cls(range=where, command=repair)
        try:
            return cls(range=where, patch=file.read_bytes(), file=file.absolute())
        except OSError as error:
            why = "no such patch file" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
            raise UsageError(why, where=f"{NAME} {repair}", remedy=_RANGE_REMEDY) from None

    @property
    def name(self) -> str:
        """Tells what it does from all others: part of what a result is kept under."""
        return hashlib.sha256(self.patch or self.command.encode()).hexdigest()

    def __str__(self) -> str:
        return f"{self.range}: {self.file or self.command}"

    def apply(self, place: Workplace, timeout_s: float) -> None:
        """Repair the checkout at ``place``.

        A patch that does not apply as it is is merged three ways where the repository has the files that it was made
        from; so it leaves a commit alone that has it already.

        Raises:
            TargetError: the patch does not apply.
            CommandError: the command failed, or took longer than ``timeout_s`` seconds.
            StoppedError: the result is not needed any more.
            OutOfTimeError: the deadline of the search has passed.
        """
        if not self.patch:
            place.run(self.command, name=f"{NAME} {self}", timeout_s=timeout_s)
            return
        git = editing(place.directory)
        try:
            git.output(*_APPLY, "-", stdin=self.patch)
        except GitError as error:
            try:
                _merge(git, self.patch)
            except GitError:
                raise TargetError(
                    f"does not apply: {error.message}",
                    where=f"{NAME} {self}",
                    remedy="narrow its range, or give another patch for these commits",
                ) from None

    def shell(self, directory: str) -> str:
        """Return the shell command that does this to the checkout ``directory``."""
        if self.patch:
            return shlex.join(["git", "-C", directory, "apply", "--3way", str(self.file)])
        return in_checkout(directory, self.command)


@dataclass(frozen=True)
class Fixups:
    """Repairs and the commits that get them: in the order in which they were given."""

    chosen: tuple[tuple[Fixup, frozenset[str] | None], ...]
    """Each with the hashes of its commits; None for all."""

    @classmethod
    def resolve(cls, fixups: Sequence[Fixup], repository: Repository) -> Fixups:
        """Return ``fixups`` with what their ranges mean in ``repository``.

        Raises:
            GitError: there is no such revision.
            UsageError: a range holds no commit, or a file is no patch.
        """
        for fixup in fixups:
            if fixup.file is not None:
                _check_patch(fixup, repository)
        return cls(tuple((fixup, _commits_of(fixup, repository)) for fixup in fixups))

    def of(self, commit: Commit) -> tuple[Fixup, ...]:
        """Return the repairs of ``commit``."""
        return tuple(fixup for fixup, commits in self.chosen if commits is None or commit.hash in commits)


def _merge(git: Git, patch: bytes) -> None:
    """Apply ``patch`` three ways: what it was made from, what it makes of that, and what lies there.

    Raises:
        GitError: they conflict, or the repository does not have what it was made from.
    """
    git.output("add", "--all", "--force")  # a merge starts from the index
    for name in _PREIMAGES.findall(patch):
        with contextlib.suppress(GitError):  # a file that comes with the patch, or one that was never committed
            content = replace(git, objects=None).output("cat-file", "blob", name.decode())
            git.output("hash-object", "-w", "--stdin", stdin=content)
    git.output(*_APPLY, "--3way", "-", stdin=patch)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a command may be longer than a file name can be
        return False


def _check_patch(fixup: Fixup, repository: Repository) -> None:
    git = Git(repository.common, (repository.common, repository.path))
    try:
        git.output("apply", "--numstat", "-", stdin=fixup.patch)
    except GitError as error:
        raise UsageError(
            f"is not a patch ({error.message})",
            where=f"{NAME} {fixup}",
            remedy=f"give the output of git diff; to run the file write 'sh {fixup.file}'",
        ) from None


def _commits_of(fixup: Fixup, repository: Repository) -> frozenset[str] | None:
    if fixup.range == EVERYWHERE:
        return None
    first, dots, last = fixup.range.partition("..")
    if not dots:
        return frozenset({repository.resolve(fixup.range).hash})
    if last.startswith("."):
        raise UsageError("names a symmetric difference", where=f"{NAME} {fixup}", remedy=_RANGE_REMEDY)
    after, until = repository.resolve(first or "HEAD"), repository.resolve(last or "HEAD")
    with reading(repository.common) as repo:
        names = repo.git.rev_list(f"{after.hash}..{until.hash}").split()
    if not names:
        raise UsageError("no commit lies in this range", where=f"{NAME} {fixup}", remedy=_RANGE_REMEDY)
    return frozenset(names)
