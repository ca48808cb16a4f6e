"""What inside a commit is at fault: a minimal set of its hunks, and the hunks that wrote lines whose bytes grew; or a
minimal set of the keys that it changed, where a configuration is measured.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from oomscope.bisect.growth import SiteGrowth
from oomscope.bisect.measured import Bytes


@dataclass(frozen=True, kw_only=True)
class HunkChange:
    """One hunk of a commit."""

    number: int
    """From 1, in the order of the row: files that came, files that changed, files that went."""
    name: str
    """The file and the lines before and after, as git writes them; a file alone that is changed as a whole."""
    path: str
    section: str
    """The function that it lies in, as git guesses it."""
    is_guilty: bool
    """One of the minimal set at fault."""
    delta: Bytes | None
    """What it brings by itself on top of the commit before; None where that was not measured."""
    sites: tuple[SiteGrowth, ...]
    """Lines that it wrote (or took away) and whose requested bytes differ."""

    @property
    def site_bytes(self) -> int:
        """By how much the requested bytes of its lines grew."""
        return sum(row.delta_bytes for row in self.sites)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {**asdict(self), "sites": [row.to_json() for row in self.sites], "site_bytes": self.site_bytes}


@dataclass(frozen=True, kw_only=True)
class Narrowed:
    """The commit at fault, narrowed to hunks or keys."""

    candidates: int
    """Hunks of the commit, or keys that it changed."""
    keys: tuple[str, ...] = ()
    """The keys at fault; the culprit has their values and bytes."""
    hunks: tuple[HunkChange, ...] = ()
    """Those at fault, in the order of the patch, and after them the others that touch lines whose bytes differ."""
    lumped: int = 0
    """How many of the guilty hunks stand in groups of which no part could be tested: one hunk of a group may do."""
    delta: Bytes
    """From the commit before to that with the guilty hunks or keys alone."""
    interaction: Bytes
    """What is left of ``delta`` when the bytes of each guilty one that was measured by itself are taken off."""
    rest: Bytes
    """What all others add to that."""

    @property
    def guilty(self) -> tuple[HunkChange, ...]:
        """The minimal set."""
        return tuple(hunk for hunk in self.hunks if hunk.is_guilty)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {**asdict(self), "hunks": [hunk.to_json() for hunk in self.hunks]}
