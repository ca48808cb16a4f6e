"""From what was measured to what is accepted: nothing worse enters the baseline unless somebody names it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace

from oomscope.errors import InputError
from oomscope.gate.baseline import Baseline, Entry
from oomscope.gate.night.compare import compare_values, other_conditions
from oomscope.gate.night.result import CaseResult, GateResult
from oomscope.gate.night.status import Status
from oomscope.gate.suite.metrics import REQUESTED
from oomscope.gate.suite.suite import Case, Suite

FREELY = frozenset({Status.NO_BASELINE, Status.INCOMPATIBLE, Status.BETTER, Status.SAME})
"""Accepted without being named."""
IF_NAMED = frozenset({Status.WORSE, Status.WARN, Status.UNCONFIRMED})
"""Accepted only where somebody says so: they lower the bar."""


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """What an update makes of a night."""

    baseline: Baseline
    accepted: tuple[str, ...]
    """Cases whose entries are new or differ from before."""
    left: Mapping[str, str]
    """Cases that were not accepted, and why."""
    left_as: tuple[Status, ...]
    """What these are, against what is accepted by now."""


def accept(night: GateResult, baseline: Baseline, suite: Suite, named: tuple[str, ...] = ()) -> Acceptance:
    """Return ``baseline`` with what of ``night`` is accepted.

    Each case is compared anew: others may have accepted something since the night.

    Args:
        night: what was measured, by now or long ago.
        baseline: what is accepted now.
        suite: says which metrics count.
        named: cases that may have become worse.

    Raises:
        InputError: a name stands for no case of the night, or the suite asks for something else by now.
    """
    named = suite.expanded(named)
    _check_names(night, named)
    asked = {case.name: case for case in suite.cases}
    entries, left, left_as = {}, {}, []
    for measured in night.cases:
        known = asked.get(measured.name)
        case = _judged_anew(measured, known, baseline)
        before = _worse_than_before(case, known, baseline)
        why = _why_not(case, known.required if known else (REQUESTED,), named, before)
        if why is None:
            entries[case.name] = _entry(case, known, night, baseline, is_named=case.name in named)
        else:
            left[case.name] = why
            left_as.append(case.status)
    changed = {
        name: entry for name, entry in entries.items() if not _says_the_same(baseline.find(name, entry.key), entry)
    }
    made = baseline.accepting(changed.items())
    return Acceptance(baseline=made, accepted=tuple(changed), left=left, left_as=tuple(left_as))


def _judged_anew(case: CaseResult, known: Case | None, baseline: Baseline) -> CaseResult:
    """Return ``case`` against the entry of ``baseline``; as it is where there is none, or no run to compare."""
    entry = None if case.key is None else baseline.find(case.name, case.key)
    is_judged = case.status in FREELY | {Status.WARN, Status.WORSE}
    if entry is None or known is None or case.outcome is None or not is_judged:
        return case
    now = compare_values(known, entry, case.outcome, case.values)
    return replace(case, status=now.status, reason=now.reason, rows=now.rows, expected_outcome=now.expected_outcome)


def _check_names(night: GateResult, named: tuple[str, ...]) -> None:
    known = [case.name for case in night.cases]
    for name in named:
        if name not in known:
            raise InputError(f"no case is called {name!r}", where="--accept", remedy=f"cases are {', '.join(known)}")


def _why_not(case: CaseResult, required: tuple[str, ...], named: tuple[str, ...], before: str) -> str | None:
    if case.status not in FREELY | IF_NAMED or case.key is None:
        return f"{case.status}: {case.reason}"
    missing = [name for name in required if name not in case.values]
    if missing:
        return f"{', '.join(missing)} not measured: there would be nothing to compare with"
    remedy = f"accept it with --accept {shlex.quote(case.name)}"
    if case.name in named:
        return None
    if case.outcome == "oom" and case.expected_outcome != "oom":
        return f"out of memory: {remedy}"
    lowering = [status for status in (case.status, *(row.status for row in case.rows)) if status in IF_NAMED]
    if lowering:
        return f"{lowering[0]}: {remedy}"
    return f"{before}: {remedy}" if before else None


def _worse_than_before(case: CaseResult, known: Case | None, baseline: Baseline) -> str:
    """Return what of a case without an entry is worse than the entry under other conditions on the same card."""
    if case.key is None or known is None or case.outcome is None or baseline.find(case.name, case.key) is not None:
        return ""
    before = baseline.forerunner(case.name, case.key)
    if before is None:
        return ""
    rows = compare_values(known, before, case.outcome, case.values).rows
    lowering = ", ".join(row.name for row in rows if row.status in IF_NAMED)
    conditions = other_conditions(case.key, before.key)
    return f"{lowering} worse than what was accepted under other conditions ({conditions})" if lowering else ""


def _entry(case: CaseResult, known: Case | None, night: GateResult, baseline: Baseline, *, is_named: bool) -> Entry:
    """Return the entry for a case that was measured; what calibration found stays.

    Of a case that nobody names a metric that is the same keeps what was accepted: inside the band that warns it may be
    a little worse, and a baseline that followed it would creep up update by update.
    """
    if case.key is None or known is None or known.digest != case.key.config:
        raise InputError(
            f"{case.name!r} was measured under another suite", where=night.suite, remedy="run the gate again"
        )
    before = baseline.find(case.name, case.key)
    values = {name: case.values[name] for name in known.counted if name in case.values}
    return Entry(
        key=case.key,
        outcome="oom" if case.outcome == "oom" else "fits",
        values=values | ({} if is_named or before is None else _kept(case, before)),
        bands=before.bands if before else {},
        oomscope=night.oomscope,
        rank=case.rank,
    )


def _kept(case: CaseResult, before: Entry) -> dict[str, int]:
    """Return what stays of ``before``: the metrics that are the same in a run that ended as then."""
    if case.outcome != before.outcome:
        return {}
    return {row.name: before.values[row.name] for row in case.rows if row.status is Status.SAME}


def _says_the_same(before: Entry | None, now: Entry) -> bool:
    """Whether nothing is new but the version that measured it."""
    if before is None:
        return False
    return (before.outcome, dict(before.values), before.rank) == (now.outcome, dict(now.values), now.rank)
