"""Commits that need a repair or a build: each is laid out as ever, then repaired, then set up, then measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from oomscope.bisect.commits import Repository
from oomscope.bisect.experiment import Experiment, Untestable
from oomscope.bisect.fixups import NAME, Fixup, Fixups
from oomscope.bisect.headers import Commit
from oomscope.bisect.identity import digest_of
from oomscope.bisect.source_text import CommitSource, NoSource, Source
from oomscope.bisect.subjects import ConfigSubject, Subject
from oomscope.bisect.workplace import Workplace, in_checkout
from oomscope.errors import UsageError

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
    timeout_s: float = TIMEOUT_S
    """How long the command of a repair may take, in seconds."""

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.fixups or self.setup)

    def of(self, subject: Subject, repository: Repository) -> Subject:
        """Return ``subject``, whose commits are checkouts, with each made ready in this way.

        Args:
            subject: what is measured.
            repository: where the commits are.

        Raises:
            GitError: a repair names a revision that is not there.
            UsageError: a repair names no commits, or no patch; or nothing is checked out.
        """
        if not self:
            return subject
        if isinstance(subject, ConfigSubject):
            raise UsageError(
                "a repair or a set-up of what is only read",
                where=NAME if self.fixups else SETUP,
                remedy="leave it out, or measure the code of each commit: nothing is checked out for --config",
            )
        return Prepared(subject, repository, Fixups.resolve(self.fixups, repository), self.setup, self.timeout_s)


@dataclass(frozen=True)
class Prepared:
    """A subject whose checkouts are repaired and set up.

    Args:
        subject: what of each commit is measured.
        repository: where the commits are.
        fixups: the repairs.
        setup: what is run in each; None for nothing.
        timeout_s: how long the command of a repair may take, in seconds.
    """

    subject: Subject
    repository: Repository
    fixups: Fixups
    setup: Setup | None
    timeout_s: float

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
        done = {"fixups": self._names(commit), "setup": self.setup.command if self.setup else None}
        content = replace(found.content, tree=f"{found.content.tree}+{digest_of(done)}")
        return replace(found, content=content, prepare=lambda place: self._prepare(place, fixups))

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
        return (*lay_out, *(fixup.shell(place) for fixup in self.fixups.of(commit)), *setup, probe)

    def _names(self, commit: Commit) -> tuple[str, ...]:
        return tuple(fixup.name for fixup in self.fixups.of(commit))

    def _prepare(self, place: Workplace, fixups: Sequence[Fixup]) -> None:
        for fixup in fixups:
            fixup.apply(place, self.timeout_s)
        if self.setup is not None:
            place.run(self.setup.command, name=SETUP, timeout_s=self.setup.timeout_s)
