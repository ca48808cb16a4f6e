"""Requests for searches: plain values, made by the command line or by a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from oomscope.bisect.changes.change_set import ChangeSet
from oomscope.bisect.results.sections import StepsWanted
from oomscope.bisect.run.prober import SearchRequest
from oomscope.bisect.targets.preparation import Preparation
from oomscope.bisect.targets.subjects import ConfigInRepo, OwnCode
from oomscope.bisect.vcs.ranges import FileAt, FileRange, RevisionRange
from oomscope.probe.job import HarnessTarget


@dataclass(frozen=True, kw_only=True)
class CheckoutRequest(SearchRequest):
    """A search that lays out commits."""

    repo: Path
    subject: ConfigInRepo | OwnCode
    preparation: Preparation = field(default_factory=Preparation)
    """What is done to each checkout before it is measured."""

    @property
    def files(self) -> tuple[Path, ...]:
        """The harness and the patches."""
        target = self.subject.target if isinstance(self.subject, OwnCode) else None
        harness = (Path(target.harness),) if isinstance(target, HarnessTarget) else ()
        return (*harness, *(fixup.file for fixup in self.preparation.fixups if fixup.file is not None))


@dataclass(frozen=True, kw_only=True)
class CommitRequest(CheckoutRequest):
    """A search over the commits of a repository."""

    range: RevisionRange
    first_parent: bool = False
    """Stop at a merge at fault instead of searching what it brought in."""
    paths: tuple[str, ...] = ()
    """Commits that touch these (git pathspecs, from the repository's root) are searched first."""
    hunks: bool = False
    """Narrow the commit at fault to the hunks (or configuration keys) at fault."""
    steps: StepsWanted | None = None
    """Search for every step of bytes as well; None for those alone that are seen on the way."""

    @property
    def revisions(self) -> dict[str, str]:
        """The ends that are given: a good end that is to be looked for is left out."""
        ends = {"good": self.range.good, "bad": self.range.bad}
        return {side: revision for side, revision in ends.items() if revision}

    def pinned(self, commits: Mapping[str, str]) -> Self:
        """Return the request with ``commits`` as ends."""
        named = {side: commits[side] for side in self.revisions if side in commits}
        return replace(self, range=replace(self.range, **named))


@dataclass(frozen=True, kw_only=True)
class ConfigRequest(SearchRequest):
    """A search over the keys in which two configuration files differ."""

    range: FileRange
    repo: Path = field(default_factory=Path)
    """The repository of files that are named by a commit."""
    dialect: str | None = None
    """Dialect of the names in both files (``megatron``, ``bridge``, ``nemo``); None for oomscope's own."""
    overrides: tuple[str, ...] = ()
    """Overrides ``section.key=value``, on top of both files."""
    layers: tuple[ChangeSet, ...] = ()
    """Changes of the environment, which are combined with the keys."""

    @property
    def revisions(self) -> dict[str, str]:
        """The revisions of files that stand in commits."""
        sides = {"good": self.range.good, "bad": self.range.bad}
        return {side: file.revision for side, file in sides.items() if isinstance(file, FileAt)}

    @property
    def files(self) -> tuple[Path, ...]:
        """The configurations on disk."""
        return tuple(file for file in (self.range.good, self.range.bad) if isinstance(file, Path))

    def pinned(self, commits: Mapping[str, str]) -> Self:
        """Return the request with files of ``commits``."""
        sides = {"good": self.range.good, "bad": self.range.bad}
        held = {
            side: replace(file, commit=commits.get(side, ""))
            for side, file in sides.items()
            if isinstance(file, FileAt)
        }
        return replace(self, range=replace(self.range, **held))


@dataclass(frozen=True, kw_only=True)
class EnvironmentRequest(CheckoutRequest):
    """A search among changes of the environment that one commit runs in."""

    revision: str
    layers: tuple[ChangeSet, ...]

    @property
    def revisions(self) -> dict[str, str]:
        """The commit."""
        return {"good": self.revision}

    def pinned(self, commits: Mapping[str, str]) -> Self:
        """Return the request for the commit among ``commits``."""
        return replace(self, revision=commits.get("good", self.revision))
