"""What a second measurement makes of the first: only what is seen twice is worse, or on a card better."""

from __future__ import annotations

from dataclasses import replace

from oomscope.gate.compare import MetricRow
from oomscope.gate.result import CaseResult
from oomscope.gate.status import GREEN, Status

_SURPRISES = frozenset({Status.WORSE, Status.BETTER})
"""Statuses that have to be seen twice."""


def calls_for_more(first: CaseResult) -> bool:
    """Whether a case has to be measured again: a virtual card says what is better every time."""
    may_vary = first.key is not None and first.key.backend != "virtual"
    return first.status is Status.WORSE or (may_vary and first.is_better)


def confirmed(first: CaseResult, again: CaseResult) -> CaseResult:
    """Return the second measurement of a case that was worse or better at first, and say what it makes of the first.

    A regression is a metric that is worse twice, running out of memory twice, or running out of it once a metric was
    worse before; an improvement is a metric that is better twice. What cannot be compared again is what it is, and not
    green: a regression that nobody saw twice is none, and nobody saw it go. What it was at first is said with it, and
    where nothing was measured again, what was measured at first is shown.
    """
    seen = replace(again, first_values=first.values)
    if first.status is again.status is Status.WORSE and again.ran_out:
        return seen
    sought = Status.WORSE if first.status is Status.WORSE else Status.BETTER
    then = f"{sought} at first ({_said(first, sought)})"
    seen = _in_place_of(seen, first) if not again.values else _held_against(seen, first)
    if again.status not in GREEN | {Status.WORSE}:
        return replace(seen, reason="; ".join(filter(None, (again.reason, then))))
    if again.status in {sought, Status.WARN} and _is_seen_twice(sought, first, again):
        return seen
    now = f"{again.status} ({_said(again)})" if again.status in _SURPRISES else str(again.status)
    return replace(seen, status=Status.UNCONFIRMED, reason=f"{then}, and {now} when it was measured again")


def _held_against(again: CaseResult, first: CaseResult) -> CaseResult:
    """Return the second measurement; what the first did not say of a metric is unconfirmed."""
    rows = (row if row.name in _named(first, row.status) else _unconfirmed(row) for row in again.rows)
    return replace(again, rows=tuple(rows))


def _in_place_of(again: CaseResult, first: CaseResult) -> CaseResult:
    """Return a second one that measured nothing with what the first did: that is all there is, and was seen once."""
    return replace(
        again,
        rows=tuple(_unconfirmed(row) for row in first.rows),
        expected_outcome=first.expected_outcome,
        notes=again.notes or first.notes,
        rank=first.rank,
        probe=first.probe if again.probe is None or again.status is Status.DEFECT else again.probe,
    )


def _unconfirmed(row: MetricRow) -> MetricRow:
    return replace(row, status=Status.UNCONFIRMED) if row.status in _SURPRISES else row


def _is_seen_twice(sought: Status, first: CaseResult, again: CaseResult) -> bool:
    """Whether both measurements say it of one metric, or both fit where the baseline does not."""
    is_named = bool(_named(first, sought) & _named(again, sought))
    return is_named or (sought is Status.BETTER and first.came_to_fit and again.came_to_fit)


def _named(case: CaseResult, status: Status) -> set[str]:
    return {row.name for row in case.rows if row.status is status}


def _said(case: CaseResult, status: Status | None = None) -> str:
    """Return what makes the case what it is, or ``status``: that it ran out of memory, its metrics, or its reason."""
    sought = status or case.status
    if case.ran_out and sought is Status.WORSE:
        return case.reason
    return ", ".join(row.name for row in case.rows if row.status is sought) or case.reason
