"""Trends: the numbers of each case night by night, and how they changed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

from oomscope.gate.baseline import Key
from oomscope.gate.ledger.ledger import Point
from oomscope.gate.night.result import Culprit, MeasuredCommit
from oomscope.gate.night.status import Status, Tone, ruling
from oomscope.gate.suite.identity import Series
from oomscope.gate.suite.metrics import METRICS

SCHEMA_VERSION = 2


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One night of a trend."""

    night: str
    started: str
    status: Status
    value: int | None
    """The metric; None where it was not measured."""
    change: int | None
    """Change since the last night that measured it under the same key; None where there is none."""
    standing: MeasuredCommit | None
    is_comparable: bool
    """Whether it was measured under the key of the night before; else the trend starts again."""
    reason: str = ""
    culprit: Culprit | None = None
    band: int = 0
    """The width of the metric's warn band on that night."""

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        plain = ("night", "started", "status", "value", "change", "is_comparable", "reason")
        return {name: getattr(self, name) for name in plain} | {
            "commit": self.standing.commit if self.standing else None,
            "subject": self.standing.subject if self.standing else None,
            "dirty": self.standing.dirty if self.standing else None,
            "culprit": self.culprit.commit or None if self.culprit else None,
        }


@dataclass(frozen=True, kw_only=True)
class Step:
    """A change from one measured night to the next."""

    before: Entry
    after: Entry
    change: int


@dataclass(frozen=True, kw_only=True)
class Trend:
    """One metric of one case, on one kind of card."""

    series: Series
    name: str
    metric: str
    entries: tuple[Entry, ...]
    """The nights, oldest first."""
    label: str
    """Name for people: the case and its suite, and what else tells it from the others."""
    backend: str | None = None
    """Backend that measured it; None where no night did."""
    gpu: str | None = None

    @property
    def status(self) -> Status:
        """Status of the last night."""
        return self.entries[-1].status

    @property
    def stretch(self) -> list[Entry]:
        """The measured nights since the conditions changed last."""
        begin = max((at for at, entry in enumerate(self.entries) if not entry.is_comparable), default=0)
        return [entry for entry in self.entries[begin:] if entry.value is not None]

    @property
    def change(self) -> int | None:
        """Change from the first night of the stretch to the last; None where there are not two."""
        nights = self.stretch
        first, last = (nights[0].value, nights[-1].value) if len(nights) > 1 else (None, None)
        return last - first if first is not None and last is not None else None

    @property
    def step(self) -> Step | None:
        """The largest step of the stretch in the direction of its change, of equal ones the last.

        None where no step is beyond the band that warns. Where the number came back to what it was, the largest of all,
        and of equal ones a growth.
        """
        nights, way = self.stretch, self.change or 0
        steps = [
            Step(before=before, after=after, change=after.change)
            for before, after in pairwise(nights)
            if after.change and abs(after.change) > after.band and after.change * way >= 0
        ]
        return max(reversed(steps), key=lambda step: (abs(step.change), step.change), default=None)

    @property
    def gravity(self) -> tuple[int, int]:
        """Sorts trends, smallest first: worse, then no answer, then reported, then green; then what grew worse most."""
        tone = ruling([self.status]).tone
        rank = 0 if self.status is Status.WORSE else 1 + [Tone.BAD, Tone.WARN, Tone.GOOD].index(tone)
        larger_is_worse = self.metric not in METRICS or METRICS[self.metric].is_worse_when_larger
        return rank, -(self.change or 0) if larger_is_worse else self.change or 0

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "suite": self.series.suite,
            "repository": self.series.repository or None,
            "name": self.name,
            "metric": self.metric,
            "backend": self.backend,
            "gpu": self.gpu,
            "change": self.change,
            "nights": [entry.to_json() for entry in self.entries],
        }


def trends(points: Iterable[Point], metric: str) -> tuple[Trend, ...]:
    """Return the trend of ``metric`` for each suite, case and card in ``points``, oldest first within a case.

    A night without a measurement belongs to every card on which the case is measured.
    """

    def owner(point: Point) -> tuple[Series, str]:
        return point.series, point.case.name

    cases = {whose: list(nights) for whose, nights in groupby(sorted(points, key=owner), key=owner)}
    has_several = len({series.repository for series, _ in cases} - {""}) > 1
    found = []
    for (series, name), nights in cases.items():
        suite = f"{series.suite} of {series.repository}" if series.repository and has_several else series.suite
        cards = list(dict.fromkeys(point.case.key.card for point in nights if point.case.key is not None))
        for card in cards or [("", "")]:
            own = [point for point in nights if point.case.key is None or point.case.key.card == card]
            found.append(
                Trend(
                    series=series,
                    name=name,
                    metric=metric,
                    entries=tuple(_entries(own, metric)),
                    label=f"{name} ({', '.join([suite, *([' '.join(filter(None, card))] if len(cards) > 1 else [])])})",
                    backend=card[0] or None,
                    gpu=card[1] or None,
                )
            )
    return tuple(found)


def gravest_first(trends: Iterable[Trend]) -> tuple[Trend, ...]:
    """Return ``trends`` in the order of reports."""
    return tuple(sorted(trends, key=lambda trend: trend.gravity))


def _entries(points: Sequence[Point], metric: str) -> list[Entry]:
    entries: list[Entry] = []
    key: Key | None = None
    before: int | None = None
    for point in points:
        case = point.case
        is_comparable = case.key is None or key is None or case.key.matches(key)
        before = before if is_comparable else None
        value = case.values.get(metric)
        entries.append(
            Entry(
                night=point.night,
                started=point.started,
                status=case.status,
                value=value,
                change=value - before if value is not None and before is not None else None,
                standing=case.standing,
                is_comparable=is_comparable,
                reason=case.reason,
                culprit=case.culprit,
                band=next((row.warn or 0 for row in case.rows if row.name == metric), 0),
            )
        )
        key = case.key or key
        before = before if value is None else value
    return entries
