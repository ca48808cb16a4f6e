"""Measured against expected: the status of each metric and of the case. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from oomscope.gate.baseline import Baseline, Entry, Key
from oomscope.gate.night.status import Status, worst
from oomscope.gate.suite.bands import Bands
from oomscope.gate.suite.metrics import METRICS, REQUESTED, values_of
from oomscope.gate.suite.suite import Case
from oomscope.probe.external_oom import is_of_the_machine
from oomscope.probe.result import ErrorKind, Failure, Outcome, ProbeResult
from oomscope.units import format_size

REPORT_IT = "please report it"
"""What is to be done about a defect of oomscope."""
_FAULTS: dict[ErrorKind, Status] = {
    "unfit": Status.UNFIT,
    "usage": Status.UNUSABLE,
    "nothing": Status.UNMEASURED,
}
"""Failures that are not of the code under measurement."""


@dataclass(frozen=True, kw_only=True)
class MetricRow:
    """One metric of one case."""

    name: str
    status: Status
    expected: int | None
    measured: int | None
    warn: int | None = None
    """How much worse it may be before it is told, in the metric's unit; None without a baseline."""
    fail: int | None = None
    """How much worse it may be before the gate fails."""

    @property
    def difference(self) -> int | None:
        """Measured less expected."""
        return None if self.expected is None or self.measured is None else self.measured - self.expected

    def admits(self, value: int) -> bool:
        """Whether ``value`` in place of what was measured would not fail."""
        return self.expected is not None and _growth(self.name, self.expected, value) <= (self.fail or 0)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {**asdict(self), "status": str(self.status), "difference": self.difference}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A case against its baseline."""

    status: Status
    reason: str = ""
    """What the status rests on, where the metrics do not say it."""
    rows: tuple[MetricRow, ...] = ()
    expected_outcome: Outcome | None = None
    """``fits`` or ``oom``; None without a baseline."""


def compare_metric(name: str, expected: int, measured: int, bands: Bands) -> MetricRow:
    """Compare one metric; only what is worse has a band, and it is as wide as what was expected makes it."""
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
    """Compare the measurement of ``case`` with what ``baseline`` expects of it.

    A run that went out of memory where the baseline fits is worse whatever its numbers, and one that fits where the
    baseline did not is better unless a number is worse. One that ran out of what the rest of the machine had left says
    nothing of the code.
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
    """Compare what a run of ``case`` told with ``entry``.

    Args:
        case: says which metrics count, and their bands.
        entry: what is expected.
        outcome: ``fits`` or ``oom``.
        values: what was measured, by metric.
        kind: of the out-of-memory failure, in brackets.
    """
    rows = [row for name in METRICS if (row := _row(case, name, entry, outcome, values)) is not None]
    if outcome == "oom" and entry.outcome == "fits":
        return Comparison(
            status=Status.WORSE,
            reason=f"out of memory{kind}, where it fitted",
            rows=tuple(row for row in rows if row.measured is not None),
            expected_outcome=entry.outcome,
        )
    return _judged(rows, entry, outcome)


def _not_measured(failure: Failure | None) -> Comparison:
    if failure is None:
        return Comparison(status=Status.UNTESTABLE, reason="it failed, and did not say why")
    if failure.kind == "internal":
        return Comparison(status=Status.DEFECT, reason=f"{failure.message}; {REPORT_IT}")
    status = _FAULTS.get(failure.kind, Status.UNTESTABLE)
    is_said = failure.kind in {"untestable", "nothing"}  # by the status
    return Comparison(status=status, reason=failure.message if is_said else f"{failure.kind}: {failure.message}")


def _judged(rows: list[MetricRow], entry: Entry, outcome: str) -> Comparison:
    status = _gravest(rows)
    reason = ""
    if outcome == "fits" and entry.outcome == "oom":
        reason = "it fits, where it ran out of memory"
        status = _gravest(rows) if any(row.status is not Status.SAME for row in rows) else Status.BETTER
    if status is None:
        return Comparison(
            status=Status.UNMEASURED, reason="no metric of this case could be compared", expected_outcome=entry.outcome
        )
    missing = [row.name for row in rows if row.status is Status.UNMEASURED]
    if missing:
        reason = f"{', '.join(missing)} not measured here"
    elif lacking := [row.name for row in rows if row.status is Status.NO_BASELINE]:
        reason = f"the baseline has no {', '.join(lacking)}"
    return Comparison(status=status, reason=reason, rows=tuple(rows), expected_outcome=entry.outcome)


def _gravest(rows: list[MetricRow]) -> Status | None:
    """Return what a case is by its metrics: worse if one is, whatever is missing of the others."""
    statuses = [row.status for row in rows]
    return Status.WORSE if Status.WORSE in statuses else worst(statuses)


def _row(case: Case, name: str, entry: Entry, outcome: str, values: Mapping[str, int]) -> MetricRow | None:
    """Return the row of a metric; None where it does not count for ``case``."""
    expected, measured = entry.values.get(name), values.get(name)
    if not _counts(case, entry, name, outcome, is_measured=name in values):
        return None
    if measured is None:
        return MetricRow(name=name, status=Status.UNMEASURED, expected=expected, measured=None)
    if expected is None:
        return MetricRow(name=name, status=Status.NO_BASELINE, expected=None, measured=measured)
    return compare_metric(name, expected, measured, case.bands_of(name, entry.bands.get(name)))


def _counts(case: Case, entry: Entry, name: str, outcome: str, *, is_measured: bool) -> bool:
    """Whether ``case`` names a metric; if it does not choose, also whether it was accepted, or is to be by default.

    Without requested bytes of either side nothing would be compared that says how much memory a case takes. A run that
    fits tells more than one that did not, and lacks nothing for that.
    """
    if name in case.required or case.chooses:
        return name in case.required
    is_new = METRICS[name].by_default and is_measured and outcome == entry.outcome
    return name in entry.values or is_new


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
    words = other_conditions(key, nearest.key)
    return Comparison(status=status, reason=f"accepted under other conditions: {words}", rows=rows)


def other_conditions(key: Key, before: Key) -> str:
    """Return in words how ``before`` differs; of a hash what it stands for: its digits tell nobody anything."""
    differences = key.differences(before)
    asked = "the suite asked for something else"
    return "; ".join(asked if text.startswith("config ") else text for text in differences)


def band_notes(case: Case, rows: tuple[MetricRow, ...], card_bytes: int | None) -> tuple[str, ...]:
    """Return a sentence for each odd band of ``rows``, which were measured on a card of ``card_bytes``."""
    return tuple(note for row in rows for note in _notes(case, row, card_bytes))


def _notes(case: Case, row: MetricRow, card_bytes: int | None) -> Iterator[str]:
    if row.warn is None or row.fail is None:
        return
    if row.warn > row.fail:
        warn, fail = _size(row.name, row.warn), _size(row.name, row.fail)
        yield f"{row.name} warns beyond {warn} and fails beyond {fail}, so that nothing is told before it fails"
    said = case.bands.get(row.name)
    metric = METRICS[row.name]
    if said is None or said.fail is None:
        return
    width = f"its band is {_size(row.name, row.fail)}"
    if said.fail.relative >= 1:
        what = "may double before it fails" if metric.is_worse_when_larger else "never fails"
        yield f"{row.name} {what}: {width}, no less than was expected"
    elif metric.is_of_the_card and card_bytes is not None and row.fail >= card_bytes:
        yield f"{row.name} never fails: {width}, on a card of {format_size(card_bytes)}"


def _size(metric: str, value: int) -> str:
    return format_size(value) if METRICS[metric].is_bytes else f"{value:,}"
