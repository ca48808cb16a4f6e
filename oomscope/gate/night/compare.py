"""Measured against expected: the status of each metric and of the case. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from oomscope.document import Document
from oomscope.gate.baseline import Baseline, Entry, Key
from oomscope.gate.night.status import GRAVITY, Status
from oomscope.gate.suite.metrics import METRICS, REQUESTED, Bands, values_of
from oomscope.gate.suite.suite import Case
from oomscope.probe.demand import is_of_the_machine
from oomscope.probe.result import ErrorKind, Failure, Outcome, ProbeResult

REPORT_IT = "please report it"
"""The remedy for a defect of oomscope."""
_FAULTS: dict[ErrorKind, Status] = {
    "unfit": Status.UNFIT,
    "usage": Status.UNUSABLE,
    "nothing": Status.UNMEASURED,
    "internal": Status.DEFECT,
}
"""Failures that the code under measurement did not cause."""


@dataclass(frozen=True, kw_only=True)
class MetricRow(Document):
    """One metric of one case."""

    also_written: ClassVar[tuple[str, ...]] = ("difference",)

    name: str
    status: Status
    expected: int | None
    measured: int | None
    warn: int | None = None
    """Difference beyond which it is reported as worse, in the metric's unit; None without a baseline."""
    fail: int | None = None
    """Difference beyond which the gate fails."""

    @property
    def difference(self) -> int | None:
        """Measured less expected."""
        return None if self.expected is None or self.measured is None else self.measured - self.expected

    def admits(self, value: int) -> bool:
        """Whether ``value`` in place of what was measured would not fail."""
        return self.expected is not None and _growth(self.name, self.expected, value) <= (self.fail or 0)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A case against its baseline."""

    status: Status
    reason: str = ""
    """Reason for the status, where the metrics do not show it."""
    rows: tuple[MetricRow, ...] = ()
    expected_outcome: Outcome | None = None
    """Outcome in the baseline, ``fits`` or ``oom``; None without a baseline."""


def compare_metric(name: str, expected: int, measured: int, bands: Bands) -> MetricRow:
    """Compare one metric with its bands, which apply to what is worse."""
    growth = _growth(name, expected, measured)
    warn, fail = bands.warn.width(expected), bands.fail.width(expected)
    if growth > fail:
        status = Status.WORSE
    elif growth > warn:
        status = Status.WARN
    else:
        status = Status.BETTER if -growth > warn else Status.SAME
    return MetricRow(name=name, status=status, expected=expected, measured=measured, warn=warn, fail=fail)


def _growth(name: str, expected: int, measured: int) -> int:
    """Return how much worse ``measured`` is; negative where it is better."""
    return measured - expected if METRICS[name].is_worse_when_larger else expected - measured


def compare_case(case: Case, result: ProbeResult, baseline: Baseline) -> Comparison:
    """Compare the measurement of ``case`` with the entry that ``baseline`` has for it.

    A run that went out of memory where the baseline fits is worse whatever its numbers, and one that fits where the
    baseline did not is better unless a number is worse. One that ran out of what the rest of the machine had left says
    nothing about the code.
    """
    if result.outcome == "error":
        return _not_measured(result.failure)
    if result.verdict is not None and is_of_the_machine(result):
        return Comparison(status=Status.UNFIT, reason=result.verdict.headline)
    values = values_of(result)
    if result.outcome == "fits" and not values.get(REQUESTED):
        return Comparison(status=Status.UNMEASURED, reason="it ran, and allocated nothing on the device")
    key = Key.of(case.digest, result)
    entry = baseline.find(case.name, key)
    if entry is None:
        return _without_entry(case, key, baseline, values)
    kind = f" ({result.verdict.kind})" if result.verdict else ""
    return compare_values(case, entry, result.outcome, values, kind)


def compare_values(case: Case, entry: Entry, outcome: str, values: Mapping[str, int], kind: str = "") -> Comparison:
    """Compare the values of a run of ``case`` with ``entry``.

    Args:
        case: says which metrics count, and their bands.
        entry: what is expected.
        outcome: ``fits`` or ``oom``.
        values: what was measured, by metric.
        kind: of the out-of-memory failure, in brackets.
    """
    rows = tuple(row for name in METRICS if (row := _row(case, name, entry, outcome, values)) is not None)
    statuses = [row.status for row in rows]
    status, reason = min(statuses, key=GRAVITY.index, default=Status.UNMEASURED), ""
    if outcome == "oom" and entry.outcome == "fits":
        status, reason = Status.WORSE, f"out of memory{kind}, where it fitted"
        rows = tuple(row for row in rows if row.measured is not None)
    else:
        if Status.WORSE in statuses:  # even if other metrics are missing
            status = Status.WORSE
        if outcome == "fits" and entry.outcome == "oom":
            reason = "it fits, where it ran out of memory"
            status = Status.BETTER if set(statuses) <= {Status.SAME} else status
        elif not rows:
            reason = "no metric of this case could be compared"
        if missing := [row.name for row in rows if row.status is Status.UNMEASURED]:
            reason = f"{', '.join(missing)} not measured here"
        elif missing := [row.name for row in rows if row.status is Status.NO_BASELINE]:
            reason = f"the baseline has no {', '.join(missing)}"
    return Comparison(status=status, reason=reason, rows=rows, expected_outcome=entry.outcome)


def _not_measured(failure: Failure | None) -> Comparison:
    if failure is None:
        return Comparison(status=Status.UNTESTABLE, reason="it failed without a reason")
    reason = failure.reason if failure.kind in {"untestable", "nothing"} else f"{failure.kind}: {failure.reason}"
    if failure.kind == "internal":
        reason = f"{failure.message}; {REPORT_IT}"
    return Comparison(status=_FAULTS.get(failure.kind, Status.UNTESTABLE), reason=reason)


def _row(case: Case, name: str, entry: Entry, outcome: str, values: Mapping[str, int]) -> MetricRow | None:
    """Return the row of a metric; None where it does not count for ``case``.

    A metric counts if the case requires it; unless the case chooses, also if it was accepted, or is measured by default
    in a run that ended as the accepted one (a run that fits has more metrics than one that does not).
    """
    expected, measured = entry.values.get(name), values.get(name)
    is_new = METRICS[name].by_default and measured is not None and outcome == entry.outcome
    if name not in case.required and (case.chooses or (expected is None and not is_new)):
        return None
    if measured is None:
        return MetricRow(name=name, status=Status.UNMEASURED, expected=expected, measured=None)
    if expected is None:
        return MetricRow(name=name, status=Status.NO_BASELINE, expected=None, measured=measured)
    return compare_metric(name, expected, measured, case.bands_of(name, entry.bands.get(name)))


def _without_entry(case: Case, key: Key, baseline: Baseline, values: dict[str, int]) -> Comparison:
    nearest = baseline.nearest(case.name, key)
    status = Status.NO_BASELINE if nearest is None else Status.INCOMPATIBLE
    rows = tuple(
        MetricRow(name=name, status=status, expected=None, measured=values[name])
        for name in case.counted
        if name in values
    )
    if case.asked and not rows:
        return Comparison(status=Status.UNMEASURED, reason=f"{', '.join(case.asked)} not measured here")
    if nearest is None:
        return Comparison(status=status, reason="nothing was accepted for this case yet", rows=rows)
    words = "; ".join(key.differences(nearest.key))
    return Comparison(status=status, reason=f"accepted under other conditions: {words}", rows=rows)
