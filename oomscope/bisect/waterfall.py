"""What ``--steps`` asks for, and what it answers beside the rows: how far it looked, and where it did not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

from oomscope.bisect.measured import Bytes
from oomscope.bisect.spread import Spread
from oomscope.bisect.steps import Threshold

EVERYWHERE = 2**31 - 1
"""Looks that leave no commit out."""


@dataclass(frozen=True, kw_only=True)
class StepsWanted:
    """Which steps are searched for."""

    threshold: Threshold | None = None
    """What a range's ends differ by at most to be left alone. None for the default: on a real card whose measurements
    are repeated nothing beside their spread, elsewhere any change of requested bytes and a segment of overhead."""
    looks: int = 0
    """Commits to measure inside ranges whose ends do not differ; ``EVERYWHERE`` for all of them."""


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Commits that were not looked into, because what is measured before and after them does not differ enough."""

    since: str
    """Hash of the measured commit before them."""
    until: str
    """Hash of the measured commit after them."""
    commits: int
    """How many change what is measured: a step and its revert may hide among two or more with ``until``."""

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Waterfall:
    """How the steps of a result were found."""

    threshold: Threshold
    start: Bytes
    """At the good end."""
    end: Bytes
    """At the bad end; the steps lead here from ``start``."""
    unseen: tuple[Stretch, ...] = ()
    is_complete: bool = True
    """Every range whose ends differ was split to the end: the deadline did not pass before."""
    spread: Spread | None = None
    """What one probe differs by from the next, where they were repeated: steps stand clear of it."""

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)


def levels(start: Bytes, deltas: Iterable[Bytes]) -> list[Bytes]:
    """Return the bytes after each of ``deltas``, which begin at ``start``."""
    return list(accumulate(deltas, initial=start))[1:]
