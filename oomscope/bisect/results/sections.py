"""Sections of a result: what inside a commit is at fault, code against configuration, found steps, commits walked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import ClassVar, Literal, NamedTuple, Self

from oomscope.bisect.results.growth import SiteGrowth
from oomscope.bisect.search.line import Answer
from oomscope.bisect.search.repeats import ProbeSpread
from oomscope.bisect.search.steps import Threshold
from oomscope.bisect.vcs.repository import Commit
from oomscope.document import Document
from oomscope.units import Bytes


@dataclass(frozen=True, kw_only=True)
class HunkChange(Document):
    """One hunk of a commit."""

    number: int
    """Number of the hunk, from 1: files that came, then files that changed, then files that went."""
    name: str
    """The file and the lines before and after, as git writes them; a file alone that is changed as a whole."""
    path: str
    section: str
    """The function that the hunk lies in, as git guesses it."""
    is_guilty: bool
    """Whether the hunk is in the minimal set at fault."""
    delta: Bytes | None
    """Difference that the hunk alone makes on top of the commit before; None where that was not measured."""
    sites: tuple[SiteGrowth, ...]
    """Lines that the hunk wrote (or took away) and whose requested bytes differ."""


class CodeLine(NamedTuple):
    """A line of a file."""

    mark: str
    """``+``: the commit wrote it, ``-``: it took it away, a space: it is as before."""
    number: int
    """Line number after the change; before it for a line that was taken away."""
    text: str


@dataclass(frozen=True, kw_only=True)
class Excerpt(Document):
    """Neighbouring lines of a file: a hunk of the commit at fault, or the code around a line that grew."""

    path: str
    section: str
    """The function that the lines lie in."""
    lines: tuple[CodeLine, ...]


@dataclass(frozen=True, kw_only=True)
class Narrowed(Document):
    """The commit at fault, narrowed to hunks or keys."""

    candidates: int
    """Hunks of the commit, or keys that it changed."""
    keys: tuple[str, ...] = ()
    """The keys at fault; the culprit has their values and bytes."""
    hunks: tuple[HunkChange, ...] = ()
    """The hunks at fault, in the order of the patch, then others that touch lines whose bytes differ."""
    lumped: int = 0
    """Number of guilty hunks in groups whose parts could not be tested: one hunk of a group may be enough."""
    delta: Bytes
    """Difference between the commit before and that commit with the guilty hunks or keys alone."""
    interaction: Bytes
    """Part of ``delta`` beyond the bytes of the guilty hunks or keys that were measured alone."""
    rest: Bytes
    """Difference that all other hunks or keys add."""

    @property
    def guilty(self) -> tuple[HunkChange, ...]:
        """The minimal set."""
        return tuple(hunk for hunk in self.hunks if hunk.is_guilty)


Guilty = Literal["code", "config", "combination", "either", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Corner(Document):
    """The code of one commit with the configuration of one."""

    code: str
    """Hash of the commit whose code it is."""
    config: str
    """Hash of the commit whose configuration it has."""
    answer: Answer
    reason: str
    peak: Bytes | None
    """Peak of the corner; None where nothing was measured."""


@dataclass(frozen=True, kw_only=True)
class CodeVsConfig(Document):
    """Old and new code with old and new configuration."""

    also_written: ClassVar[tuple[str, ...]] = ("guilty", "interaction")

    path: str
    """Path of the configuration in the repository."""
    old_old: Corner
    """The good end."""
    new_old: Corner
    """New code, old configuration."""
    old_new: Corner
    """Old code, new configuration."""
    new_new: Corner
    """The bad end."""

    @property
    def guilty(self) -> Guilty:
        """What is at fault; unknown where a corner that decides it cannot be tested."""
        code, config = self.new_old.answer, self.old_new.answer
        if Answer.UNTESTABLE in {code, config}:
            return "unknown"
        if code is Answer.BAD:
            return "either" if config is Answer.BAD else "code"
        return "config" if config is Answer.BAD else "combination"

    @property
    def interaction(self) -> Bytes | None:
        """What code and configuration bring only together; None where a corner was not measured."""
        none, code = self.old_old.peak, self.new_old.peak
        config, both = self.old_new.peak, self.new_new.peak
        if none is None or code is None or config is None or both is None:
            return None
        return both - none - (code - none) - (config - none)


@dataclass(frozen=True, kw_only=True)
class StepsWanted:
    """Which steps are searched for."""

    threshold: Threshold | None = None
    """Largest difference between the ends of a range that is left alone. None for the default: on a real card whose
    measurements are repeated nothing beside their spread, elsewhere any change of requested bytes and a segment of
    overhead."""
    looks: int = 0
    """Commits to measure inside ranges whose ends do not differ."""


@dataclass(frozen=True, kw_only=True)
class UnseenStretch(Document):
    """Commits that were not looked into, because what is measured before and after them does not differ enough."""

    since: str
    """Hash of the measured commit before them."""
    until: str
    """Hash of the measured commit after them."""
    commits: int
    """Commits that change what is measured: a step and its revert may hide among two or more with ``until``."""


@dataclass(frozen=True, kw_only=True)
class Waterfall(Document):
    """How the steps of a result were found."""

    threshold: Threshold
    start: Bytes
    """Bytes at the good end."""
    end: Bytes
    """Bytes at the bad end; the steps lead here from ``start``."""
    unseen: tuple[UnseenStretch, ...] = ()
    is_complete: bool = True
    """Whether every range whose ends differ was split to the end, before the deadline."""
    spread: ProbeSpread | None = None
    """Difference between probes of one commit, where they were repeated: steps stand clear of it."""


def levels(start: Bytes, deltas: Iterable[Bytes]) -> list[Bytes]:
    """Return the bytes after each of ``deltas``, which begin at ``start``."""
    return list(accumulate(deltas, initial=start))[1:]


@dataclass(frozen=True, kw_only=True)
class LinePlace:
    """Neighbouring commits that measure the same thing, named by the first of them."""

    commit: str
    """Full hash."""
    subject: str
    same: tuple[str, ...] = ()
    """Hashes of the other commits."""
    is_chosen: bool = True
    """Whether a commit touches the chosen paths; True where none were chosen."""

    @property
    def commits(self) -> int:
        """Number of the commits."""
        return 1 + len(self.same)


@dataclass(frozen=True, kw_only=True)
class WalkedLine(Document):
    """One line, from the commit before its first candidate to its bad end."""

    places: tuple[LinePlace, ...]
    merge: str | None = None
    """Hash of the merge that brought the line in; None for the line from the good end to the bad end."""

    @classmethod
    def of(
        cls, positions: Sequence[Sequence[Commit]], chosen: Collection[int] | None = None, merge: str | None = None
    ) -> Self:
        """Return the line of ``positions``, of which those in ``chosen`` are on the chosen paths (None: all)."""
        among = None if chosen is None else set(chosen)
        places = (
            LinePlace(
                commit=commits[0].hash,
                subject=commits[0].subject,
                same=tuple(commit.hash for commit in commits[1:]),
                is_chosen=among is None or place in among,
            )
            for place, commits in enumerate(positions)
        )
        return cls(places=tuple(places), merge=merge)

    @cached_property
    def position(self) -> dict[str | None, int]:
        """The place of each hash."""
        return {name: at for at, place in enumerate(self.places) for name in (place.commit, *place.same)}
