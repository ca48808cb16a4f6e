"""From a night to a new baseline: nothing worse is accepted unless the user names it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from oomscope.errors import InputError
from oomscope.gate.baseline import Baseline, Entry
from oomscope.gate.night.compare import MetricRow, compare_values
from oomscope.gate.night.result import CaseResult, GateResult
from oomscope.gate.night.status import Status
from oomscope.gate.suite.metrics import REQUESTED
from oomscope.gate.suite.suite import Case, Suite
from oomscope.printable import quoted

FREELY = frozenset({Status.NO_BASELINE, Status.INCOMPATIBLE, Status.BETTER, Status.SAME})
"""Statuses that are accepted without being named."""
IF_NAMED = frozenset({Status.WORSE, Status.WARN, Status.UNCONFIRMED})
"""Statuses that are accepted only by name: they lower the bar."""


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """The result of an update."""

    baseline: Baseline
    accepted: tuple[str, ...]
    """Cases whose entries are new or changed."""
    left: Mapping[str, str]
    """Reasons why cases were not accepted, by case."""
    left_as: tuple[Status, ...]
    """Statuses of the cases that were not accepted, against the baseline as it is now."""


def accept(night: GateResult, baseline: Baseline, suite: Suite, named: tuple[str, ...] = ()) -> Acceptance:
    """Return ``baseline`` with what of ``night`` is accepted.

    Each case is compared anew: others may have accepted something since the night.

    Raises:
        InputError: a name stands for no case of the night, or the suite asks for something else by now.
    """
    known = [case.name for case in night.cases]
    for name in named:
        if name not in known:
            raise InputError(
                f"no case is called {quoted(name)}", where="--accept", remedy=f"cases are {', '.join(known)}"
            )
    asked = {case.name: case for case in suite.cases}
    changed, left, left_as = {}, {}, []
    for measured in night.cases:
        known_case = asked.get(measured.name)
        case = _compared_anew(measured, known_case, baseline)
        is_named = case.name in named
        required = known_case.required if known_case else (REQUESTED,)
        if reason := _refusal(case, required, _other_conditions(case, baseline), is_named=is_named):
            left[case.name] = reason
            left_as.append(case.status)
            continue
        entry = _entry(case, known_case, night, baseline, is_named=is_named)
        before = baseline.find(case.name, entry.key)
        if before is None or replace(entry, oomscope=before.oomscope) != before:
            changed[case.name] = entry
    made = baseline.accepting(changed.items())
    return Acceptance(baseline=made, accepted=tuple(changed), left=left, left_as=tuple(left_as))


def _compared_anew(case: CaseResult, known: Case | None, baseline: Baseline) -> CaseResult:
    """Return ``case`` against the entry of ``baseline``; as it is where there is none, or no run to compare.

    Without an entry under its own conditions a case is still worse if it is worse than under others on the same card:
    changed settings hide no regression.
    """
    is_judged = case.status in FREELY | {Status.WARN, Status.WORSE}
    if case.key is None or known is None or case.outcome is None or not is_judged:
        return case
    entry = baseline.find(case.name, case.key)
    elsewhere = None if entry else baseline.nearest_on_card(case.name, case.key)
    if (before := entry or elsewhere) is None:
        return case
    now = compare_values(known, before, case.outcome, case.values)
    status = now.status if entry else next(iter(_lowering(now.status, now.rows)), None)
    if status is None:
        return case
    return replace(case, status=status, reason=now.reason, rows=now.rows, expected_outcome=now.expected_outcome)


def _lowering(status: Status, rows: Iterable[MetricRow]) -> list[Status]:
    """Return those of the statuses of a case and its metrics that lower the bar."""
    return [each for each in (status, *(row.status for row in rows)) if each in IF_NAMED]


def _other_conditions(case: CaseResult, baseline: Baseline) -> str:
    """Return in words how the entry that ``case`` was compared with differs; empty where it is its own, or none."""
    if case.key is None or baseline.find(case.name, case.key) is not None:
        return ""
    elsewhere = baseline.nearest_on_card(case.name, case.key)
    return "; ".join(case.key.differences(elsewhere.key)) if elsewhere else ""


def _refusal(case: CaseResult, required: tuple[str, ...], conditions: str, *, is_named: bool) -> str:
    """Return why a case is not accepted; empty where it is. ``conditions``: in what its entry differs."""
    if case.status not in FREELY | IF_NAMED or case.key is None:
        return f"{case.status}: {case.reason}"
    if missing := [name for name in required if name not in case.values]:
        return f"{', '.join(missing)} not measured: nothing to compare with"
    remedy = f"accept it with --accept {shlex.quote(case.name)}"
    if not is_named and case.outcome == "oom" and case.expected_outcome != "oom":
        return f"out of memory: {remedy}"
    lowering = _lowering(case.status, case.rows)
    than = f" than what was accepted under other conditions ({conditions})" if conditions else ""
    return f"{lowering[0]}{than}: {remedy}" if lowering and not is_named else ""


def _entry(case: CaseResult, known: Case | None, night: GateResult, baseline: Baseline, *, is_named: bool) -> Entry:
    """Return the entry for a case that was measured, with the bands of calibration.

    Unless the case is named, a metric that is the same keeps the accepted value: within the warn band it may be a
    little worse, and a baseline that followed it would creep up from update to update.
    """
    if case.key is None or known is None or known.digest != case.key.config:
        raise InputError(
            f"{quoted(case.name)} was measured under another suite", where=night.suite, remedy="run the gate again"
        )
    before = baseline.find(case.name, case.key)
    values = {name: case.values[name] for name in known.counted if name in case.values}
    if before is not None and not is_named and case.outcome == before.outcome:
        values |= {row.name: before.values[row.name] for row in case.rows if row.status is Status.SAME}
    return Entry(
        key=case.key,
        outcome="oom" if case.outcome == "oom" else "fits",
        values=values,
        bands=before.bands if before else {},
        oomscope=night.oomscope,
        rank=case.rank,
    )
