"""A night: every case is probed and compared, and what is red is measured again before anybody is told.

On a card the same holds for what is better: a lucky measurement makes no new baseline.
"""

from __future__ import annotations

import datetime as dt
import secrets
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import oomscope
from oomscope.errors import ExitCode, OomscopeError
from oomscope.files import real_path
from oomscope.gate.baseline import Baseline, Entry, Key
from oomscope.gate.cases import CasePlan, Probe, plan_of
from oomscope.gate.compare import Comparison, MetricRow, compare_case
from oomscope.gate.home import Home
from oomscope.gate.metrics import values_of
from oomscope.gate.result import CaseResult, GateResult, Standing
from oomscope.gate.status import GREEN, Status
from oomscope.gate.suite import Case, Suite, suite_id
from oomscope.probe.launch import StoppedError
from oomscope.probe.result import ProbeResult
from oomscope.probe.variants import side_by_side

Announce = Callable[[int, int, CaseResult], None]
"""Told of each case as it is done: how many are, of how many, and the case."""
StandsAt = Callable[[Case], Standing | None]
"""Where a case stands in its history; None where it has none."""


def _nowhere(_case: Case) -> None:
    """Know no history."""


def _ignore(_done: int, _total: int, _case: CaseResult) -> None:
    """Take no notice."""


@dataclass(frozen=True, kw_only=True)
class Night:
    """What a run of the gate is given."""

    suite: Suite
    baseline: Baseline
    baseline_path: Path
    probe: Probe
    home: Home | None = None
    """The suite's file in its repository; None outside of git."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Those of the environment that change what is allocated."""
    unwatched: tuple[str, ...] = ()
    """Cases that only the baseline has, to be told of."""
    jobs: int = 1
    """Cases side by side."""
    strict: bool = False
    stands_at: StandsAt = field(default=_nowhere)
    announce: Announce = field(default=_ignore)

    def run(self) -> GateResult:
        """Measure and compare all cases, and return what came of them in the order of the suite."""
        started = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        done: dict[int, CaseResult] = {}
        calls = [self._call(case) for case in self.suite.cases]
        for number, case in side_by_side(calls, self.jobs):
            done[number] = case
            self.announce(len(done), len(calls), case)
        return GateResult(
            night=secrets.token_hex(8),
            started=started,
            suite=suite_id(self.suite.path),
            home=self.home,
            baseline=str(real_path(self.baseline_path)),
            variables=self.variables,
            strict=self.strict,
            oomscope=oomscope.__version__,
            unwatched=self.unwatched,
            cases=tuple(done[number] for number in range(len(calls))),
        )

    def _call(self, case: Case) -> Callable[[threading.Event], CaseResult]:
        return lambda stop: self.measure(case, stop)

    def measure(self, case: Case, stop: threading.Event) -> CaseResult:
        """Measure and compare one case; where it is worse, or on a card better, once more: only twice counts.

        Raises:
            StoppedError: ``stop`` was set.
        """
        try:
            checkout = None if case.own_kind is None else str(real_path(case.checkout))
            standing = self.stands_at(case)
            return replace(self._answer(case, stop), standing=standing, line=case.line, checkout=checkout)
        except StoppedError:
            raise
        except Exception as error:  # noqa: BLE001 - a defect in one case hides no other
            return CaseResult(name=case.name, status=Status.DEFECT, reason=_traced(error), line=case.line)

    def _answer(self, case: Case, stop: threading.Event) -> CaseResult:
        try:
            plan = plan_of(case)
        except OomscopeError as error:
            return CaseResult(name=case.name, status=Status.UNUSABLE, reason=str(error))
        first = self._measured(case, plan, stop)
        return _confirmed(first, self._measured(case, plan, stop)) if _calls_for_more(first) else first

    def _measured(self, case: Case, plan: CasePlan, stop: threading.Event) -> CaseResult:
        try:
            result = plan.measure(self.probe, stop)
        except OomscopeError as error:  # a variable of the environment, no room for temporary files
            status = Status.UNUSABLE if error.exit_code is ExitCode.USAGE else Status.UNFIT
            return CaseResult(name=case.name, status=status, reason=str(error))
        comparison = compare_case(case, result, self.baseline)
        entry = None if result.outcome == "error" else self.baseline.find(case.name, Key.of(case.digest, result))
        told = _case_result(case, result, comparison, entry)
        return replace(told, notes=(*plan.notes, *told.notes))


def _case_result(case: Case, result: ProbeResult, comparison: Comparison, entry: Entry | None) -> CaseResult:
    notes = result.notes
    if entry is not None and entry.oomscope not in {"", oomscope.__version__}:
        notes = (*notes, f"the baseline is of oomscope {entry.oomscope}, this is {oomscope.__version__}")
    return CaseResult(
        name=case.name,
        status=comparison.status,
        reason=comparison.reason,
        rows=comparison.rows,
        key=None if result.outcome == "error" else Key.of(case.digest, result),
        outcome=result.outcome,
        expected_outcome=comparison.expected_outcome,
        values=values_of(result),
        notes=notes,
        probe=result,
    )


def _traced(error: Exception) -> str:
    """Return what an exception says, and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}; please report it"


def _calls_for_more(first: CaseResult) -> bool:
    """Whether a case has to be measured again: the simulated device says what is better every time."""
    may_vary = first.key is not None and first.key.backend != "sim"
    return first.status is Status.WORSE or (may_vary and first.is_better)


def _confirmed(first: CaseResult, again: CaseResult) -> CaseResult:
    """Return the second measurement of a case that was worse or better at first, and say what it makes of the first.

    A regression is a metric that is worse twice, running out of memory twice, or running out of it once a metric was
    worse before; an improvement is a metric that is better twice. What cannot be compared again is what it is, and not
    green: a regression that nobody saw twice is none, and nobody saw it go. What it was at first is said with it.
    """
    seen = replace(again, first_values=first.values)
    if first.status is again.status is Status.WORSE and again.ran_out:
        return seen
    sought = Status.WORSE if first.status is Status.WORSE else Status.BETTER
    then = f"{sought} at first ({_said(first, sought)})"
    seen = replace(seen, rows=tuple(_held_against(row, first) for row in again.rows))
    if again.status not in GREEN | {Status.WORSE}:
        return replace(seen, reason="; ".join(filter(None, (again.reason, then))))
    if again.status in {sought, Status.WARN} and _is_seen_twice(sought, first, again):
        return seen
    now = f"{again.status} ({_said(again)})" if again.status in _SURPRISES else str(again.status)
    return replace(seen, status=Status.UNCONFIRMED, reason=f"{then}, and {now} when it was measured again")


_SURPRISES = frozenset({Status.WORSE, Status.BETTER})
"""Statuses that have to be seen twice."""


def _held_against(row: MetricRow, first: CaseResult) -> MetricRow:
    """Return a row of the second measurement; what the first did not say of the metric is unconfirmed."""
    is_new = row.status in _SURPRISES and row.name not in _named(first, row.status)
    return replace(row, status=Status.UNCONFIRMED) if is_new else row


def _is_seen_twice(sought: Status, first: CaseResult, again: CaseResult) -> bool:
    """Whether both measurements say it of one metric, or both fit where the baseline does not."""
    is_named = bool(_named(first, sought) & _named(again, sought))
    return is_named or (sought is Status.BETTER and first.came_to_fit and again.came_to_fit)


def _named(case: CaseResult, status: Status) -> set[str]:
    return {row.name for row in case.rows if row.status is status}


def _said(case: CaseResult, status: Status | None = None) -> str:
    """Return what makes the case what it is, or ``status``: its metrics, else its reason."""
    sought = status or case.status
    return ", ".join(row.name for row in case.rows if row.status is sought) or case.reason
