"""What a search is asked: plain values, made by the command line or by a program."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from oomscope.bisect.axes import Layer
from oomscope.bisect.journal_use import JournalUse
from oomscope.bisect.noise import Noise
from oomscope.bisect.places import Places
from oomscope.bisect.predicate import Bad
from oomscope.bisect.preparation import Preparation
from oomscope.bisect.ranges import FileRange, RevisionRange
from oomscope.bisect.slurm import ClusterSettings
from oomscope.bisect.subjects import ConfigInRepo, OwnCode
from oomscope.bisect.waterfall import StepsWanted


@dataclass(frozen=True, kw_only=True)
class SearchRequest:
    """What all searches have in common."""

    bad: Bad = field(default_factory=Bad)
    deadline_s: float | None = None
    """Seconds after which the search ends with what it knows; None for no end."""
    use_cache: bool = True
    """Take results of earlier searches, and keep those of this one."""
    places: Places = field(default_factory=Places.default)
    jobs: int = 1
    """Probes side by side: what is likely to be asked next is begun early. It changes no answer."""
    cluster: ClusterSettings | None = None
    """Where probes are run as jobs; None for this machine."""
    journal: JournalUse = field(default_factory=JournalUse)
    """Begin a journal, or go on with one."""
    noise: Noise | None = None
    """What to do about answers that may be wrong; None for what the backend calls for."""


@dataclass(frozen=True, kw_only=True)
class CheckoutRequest(SearchRequest):
    """A search that lays out commits."""

    preparation: Preparation = field(default_factory=Preparation)
    """What is done to each before it is measured."""


@dataclass(frozen=True, kw_only=True)
class CommitRequest(CheckoutRequest):
    """A search over the commits of a repository."""

    repo: Path
    range: RevisionRange
    subject: ConfigInRepo | OwnCode
    first_parent: bool = False
    """Stop at a merge at fault instead of searching what it brought in."""
    paths: tuple[str, ...] = ()
    """Only commits that touch these (git pathspecs, from the repository's root) can be at fault."""
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
    layers: tuple[Layer, ...] = ()
    """Changes of the surroundings, which are mixed with the keys."""


@dataclass(frozen=True, kw_only=True)
class SurroundingsRequest(CheckoutRequest):
    """A search among changes of the environment that one commit runs in."""

    repo: Path
    revision: str
    subject: ConfigInRepo | OwnCode
    layers: tuple[Layer, ...]
