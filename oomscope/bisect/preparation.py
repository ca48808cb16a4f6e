"""Commits that need a repair or a build: each is laid out as ever, then repaired, then set up, then measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from oomscope.bisect.build_cache import BuildCache
from oomscope.bisect.commits import Repository
from oomscope.bisect.experiment import Experiment, Untestable
from oomscope.bisect.fixups import NAME, Fixup, Fixups
from oomscope.bisect.headers import Commit
from oomscope.bisect.identity import digest_of
from oomscope.bisect.setups import NAME as SETUP
from oomscope.bisect.setups import TIMEOUT_S, Setup, SetupRunner
from oomscope.bisect.source_text import CommitSource, NoSource, Source
from oomscope.bisect.subjects import ConfigSubject, Subject
from oomscope.bisect.workplace import Workplace, in_checkout
from oomscope.errors import UsageError

if TYPE_CHECKING:
    from oomscope.config.schema import Config


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

    def of(self, subject: Subject, repository: Repository, builds: Path) -> Subject:
        """Return ``subject``, whose commits are checkouts, with each made ready in this way.

        Args:
            subject: what is measured.
            repository: where the commits are.
            builds: where it is kept what set-ups write.

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
        runner = None if self.setup is None else SetupRunner(self.setup, BuildCache(builds))
        return Prepared(subject, repository, Fixups.resolve(self.fixups, repository), runner, self.timeout_s)


@dataclass(frozen=True)
class Prepared:
    """A subject whose checkouts are repaired and set up.

    Args:
        subject: what of each commit is measured.
        repository: where the commits are.
        fixups: the repairs.
        runner: does the set-up; None for none.
        timeout_s: how long the command of a repair may take, in seconds.
    """

    subject: Subject
    repository: Repository
    fixups: Fixups
    runner: SetupRunner | None
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
        done = {"fixups": self._names(commit), **self._done()}
        content = replace(found.content, tree=f"{found.content.tree}+{digest_of(done)}")
        return replace(found, content=content, prepare=lambda place: self._prepare(place, fixups))

    def config(self, commit: Commit) -> Config | None:
        """Return the configuration that the subject has for ``commit``."""
        return self.subject.config(commit)

    def source(self, commit: Commit) -> Source:
        """Return the commit's files, among which a set-up may have put others; nothing where a repair changed them."""
        if self.fixups.of(commit):
            return NoSource()
        return CommitSource(self.repository, commit, is_built=self.runner is not None)

    def commands(self, commit: Commit) -> tuple[str, ...]:
        """Return commands that lay the commit out, make it ready and probe it."""
        *lay_out, probe = self.subject.commands(commit)
        place = f"{self.repository.name}-{commit.short}"
        setup = [in_checkout(place, self.runner.setup.command)] if self.runner else []
        return (*lay_out, *(fixup.shell(place) for fixup in self.fixups.of(commit)), *setup, probe)

    def _done(self) -> dict[str, object]:
        """Return what a set-up makes of a commit: under other inputs it may be another commit's build."""
        setup = self.runner.setup if self.runner else None
        return {"setup": setup.command, "inputs": sorted(setup.inputs)} if setup else {"setup": None}

    def _names(self, commit: Commit) -> tuple[str, ...]:
        return tuple(fixup.name for fixup in self.fixups.of(commit))

    def _prepare(self, place: Workplace, fixups: Sequence[Fixup]) -> tuple[str, ...]:
        for fixup in fixups:
            fixup.apply(place, self.timeout_s)
        return self.runner.run(place, [fixup.name for fixup in fixups]) if self.runner else ()
