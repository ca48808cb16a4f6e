"""Where a suite is at home: what stays the same of it in every checkout of its repository. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import ClassVar

_HOST = re.compile(r"^(?:\w[\w+.-]*://[^/]*|[^/:]+:)")
"""``https://user:token@host:8443`` or ``git@host:`` before the path (git-clone(1), GIT URLS)."""


@dataclass(frozen=True, kw_only=True)
class Home:
    """A file in a repository, whichever checkout it is seen in."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    path: str
    """From the root of the repository, with slashes."""
    first_commit: str = ""
    """The commit with which the history began; empty where the clone is shallow."""
    remote: str = ""
    """What the repository is called where it was cloned from, as :func:`remote_name` has it; empty where it was not."""

    @property
    def repository(self) -> str:
        """What people call the repository: as its remote does, else by its first commit."""
        return self.remote or self.first_commit[:10]

    def is_beside(self, other: Home) -> bool:
        """Whether ``other`` lies in the same repository: in any of its clones, one of which may be shallow."""
        began_alike = bool(self.first_commit) and self.first_commit == other.first_commit
        return began_alike or (bool(self.remote) and self.remote == other.remote)


def remote_name(url: str) -> str:
    """Return ``group/project`` of any URL that git clones from.

    Without scheme, host and credentials: runners clone with a token of the night, and people over ssh.
    """
    path = _HOST.sub("", url)
    return path.strip("/").removesuffix("/.git").removesuffix(".git").strip("/")


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


_BASELINE = ".baseline.yaml"


def baseline_beside(suite: Path) -> Path:
    """Return where the baseline of ``suite`` lies."""
    return suite.with_name(suite.stem + _BASELINE)
