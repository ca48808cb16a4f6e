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
    same: tuple[str, ...] = ()
    """Hashes of the others."""
    is_chosen: bool = True
    """On the chosen paths; all are where none were chosen."""

    @property
    def commits(self) -> int:
        """How many they are."""
        return 1 + len(self.same)


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

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)
