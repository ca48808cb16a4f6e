"""What a search is asked: plain values, made by the command line or by a program."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from oomscope.bisect.changes.change_set import ChangeSet
from oomscope.bisect.results.sections import StepsWanted
from oomscope.bisect.run.prober import SearchRequest
from oomscope.bisect.targets.preparation import Preparation
from oomscope.bisect.targets.subjects import ConfigInRepo, OwnCode
from oomscope.bisect.vcs.ranges import FileRange, RevisionRange


@dataclass(frozen=True, kw_only=True)
class CheckoutRequest(SearchRequest):
    """A search that lays out commits."""

    repo: Path
    subject: ConfigInRepo | OwnCode
    preparation: Preparation = field(default_factory=Preparation)
    """What is done to each checkout before it is measured."""


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


@dataclass(frozen=True, kw_only=True)
class ConfigRequest(SearchRequest):
    """A search over the keys in which two configuration files differ."""

    range: FileRange
    repo: Path = field(default_factory=Path)
    """Where the files are that are named by a commit."""
    dialect: str | None = None
    """Whose names both files have (``megatron``, ``bridge``, ``nemo``), where not oomscope's own."""
    overrides: tuple[str, ...] = ()
    """``section.key=value`` each, on top of both files."""
    layers: tuple[ChangeSet, ...] = ()
    """Changes of the environment, which are combined with the keys."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentRequest(CheckoutRequest):
    """A search among changes of the environment that one commit runs in."""

    revision: str
    layers: tuple[ChangeSet, ...]
