"""Trends: each case's numbers night by night, with what changed from one to the next. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from oomscope.gate.baseline import Key
from oomscope.gate.ledger import Point
from oomscope.gate.result import Standing
from oomscope.gate.status import Status

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One night of a trend."""

    night: str
    started: str
    status: Status
    value: int | None
    """The metric; None where it was not measured."""
    change: int | None
    """Since the last night that measured it under the same key; None where there is none."""
    standing: Standing | None
    is_comparable: bool
    """Measured under the key of the night before; else the trend begins afresh."""
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Trend:
    """One metric of one case."""

    suite: str
    name: str
    metric: str
    entries: tuple[Entry, ...]
    """Oldest first."""

    @property
    def values(self) -> list[int]:
        """The values that were measured."""
        return [entry.value for entry in self.entries if entry.value is not None]

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "suite": self.suite,
            "name": self.name,
            "metric": self.metric,
            "nights": [
                {
                    "night": entry.night,
                    "started": entry.started,
                    "status": str(entry.status),
                    "value": entry.value,
                    "change": entry.change,
                    "commit": entry.standing.commit if entry.standing else None,
                    "subject": entry.standing.subject if entry.standing else None,
                    "dirty": entry.standing.dirty if entry.standing else None,
                    "is_comparable": entry.is_comparable,
                    "reason": entry.reason,
                }
                for entry in self.entries
            ],
        }


def trends(points: Iterable[Point], metric: str) -> tuple[Trend, ...]:
    """Return the trend of ``metric`` for each suite and case in ``points``, which come oldest first within a case."""

    def owner(point: Point) -> tuple[str, str]:
        return point.suite, point.case.name

    grouped = groupby(sorted(points, key=owner), key=owner)
    return tuple(
        Trend(suite=suite, name=name, metric=metric, entries=tuple(_entries(list(nights), metric)))
        for (suite, name), nights in grouped
    )


def _entries(points: Sequence[Point], metric: str) -> list[Entry]:
    entries: list[Entry] = []
    key: Key | None = None
    before: int | None = None
    for point in points:
        case = point.case
        is_comparable = case.key is None or key is None or case.key == key
        if not is_comparable:
            before = None
        value = case.values.get(metric)
        change = value - before if value is not None and before is not None else None
        entries.append(
            Entry(
                night=point.night,
                started=point.started,
                status=case.status,
                value=value,
                change=change,
                standing=case.standing,
                is_comparable=is_comparable,
                reason=case.reason,
            )
        )
        key = case.key or key
        before = value if value is not None else before
    return entries
