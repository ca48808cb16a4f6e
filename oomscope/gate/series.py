"""Which nights are of one suite, in whatever folder the checkout of each lay. Pure.

A suite is known by its path in its repository, and the repository by its first commit or by its remote: clones share
both, a shallow one has the remote alone. A night that knows neither, because there is no repository or an older version
measured it, is known by the absolute path of its suite. It belongs to the suite of a repository that was seen at that
path, else in a checkout whose folder has the same name, if that is only one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from oomscope.gate.home import Home


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a night found its suite."""

    path: str
    """The absolute path."""
    home: Home | None = None

    @property
    def tail(self) -> str:
        """The end of the path: the checkout's folder, and the file in it."""
        inside = self.home.path if self.home else ""
        return f"{PurePosixPath(self.path.removesuffix(inside)).name}/{inside}"


@dataclass(frozen=True, kw_only=True, order=True)
class Series:
    """A suite over its nights."""

    suite: str
    """Its path in the repository; the absolute path where no repository is known."""
    repository: str = ""
    """What the repository is called; empty where none is known."""


def series_of(places: Iterable[Place]) -> dict[Place, Series]:
    """Return the series of each place; of several names that a repository had, the last of ``places`` counts."""
    each = tuple(dict.fromkeys(places))
    groups = _repositories(
        dict.fromkeys(place.home for place in each if place.home is not None and place.home.repository)
    )
    named = {home: Series(suite=home.path, repository=_name(group)) for group in groups for home in group}
    paths, tails = defaultdict[str, set[Series]](set), defaultdict[str, set[Series]](set)
    for place in each:
        if place.home is not None and place.home in named:
            paths[place.path].add(named[place.home])
            tails[place.tail].add(named[place.home])

    def of(place: Place) -> Series:
        if place.home is not None and place.home in named:
            return named[place.home]
        alike = paths.get(place.path) or {one for end in tails if place.path.endswith(f"/{end}") for one in tails[end]}
        return next(iter(alike)) if len(alike) == 1 else Series(suite=place.path)

    return {place: of(place) for place in each}


def _repositories(homes: Iterable[Home]) -> list[list[Home]]:
    """Return those of ``homes`` together that lie in one repository; the order stays."""
    groups: list[list[Home]] = []
    for home in homes:
        alike = [group for group in groups if any(home.is_beside(other) for other in group)]
        groups = [group for group in groups if group not in alike]
        groups.append([*(other for group in alike for other in group), home])
    return groups


def _name(group: list[Home]) -> str:
    """Return what a repository is called: as the last remote that was seen, else as all its clones are."""
    remotes = [home.remote for home in group if home.remote]
    return remotes[-1] if remotes else group[-1].repository
