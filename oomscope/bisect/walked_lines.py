"""The lines of commits that a search went along, as its reports draw them: what was not probed has a place as well."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Self

from oomscope.bisect.headers import Commit


@dataclass(frozen=True, kw_only=True)
class LinePlace:
    """Neighbouring commits that measure the same thing, named by the first of them."""

    commit: str
    """Full hash."""
    subject: str
    commits: int = 1
    """How many they are."""
    is_chosen: bool = True
    """On the chosen paths; all are where none were chosen."""


@dataclass(frozen=True, kw_only=True)
class WalkedLine:
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
                commits=len(commits),
                is_chosen=among is None or place in among,
            )
            for place, commits in enumerate(positions)
        )
        return cls(places=tuple(places), merge=merge)

    @cached_property
    def position(self) -> dict[str | None, int]:
        """The place of each hash."""
        return {place.commit: number for number, place in enumerate(self.places)}

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)
