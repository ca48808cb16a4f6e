"""A night: every case is measured and compared, and a regression is measured again before it is reported.

On a card an improvement is measured again too: a lucky measurement makes no new baseline.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import oomscope
from oomscope.errors import ExitCode, OomscopeError
from oomscope.files import real_path
from oomscope.gate.baseline import Baseline, Entry, Key
from oomscope.gate.night.cases import CasePlan, plan_of, traced
from oomscope.gate.night.compare import REPORT_IT, MetricRow, compare_case
from oomscope.gate.night.result import CaseResult, GateResult, MeasuredCommit
from oomscope.gate.night.status import GREEN, Status
from oomscope.gate.suite.identity import Home
from oomscope.gate.suite.metrics import values_of
from oomscope.gate.suite.suite import Case, Suite
from oomscope.probe.process.launch import StoppedError
from oomscope.probe.tuning.variants import Probe, side_by_side

Announce = Callable[[int, int, CaseResult], None]
"""Called after each case: how many are done, of how many, and the case."""
CommitOf = Callable[[Case], MeasuredCommit | None]
"""Returns the commit of a case; None where it has none."""


class InterruptedNight(KeyboardInterrupt):
    """A night that was ended after some cases were measured."""

    def __init__(self, night: GateResult, stop: KeyboardInterrupt | SystemExit) -> None:
        super().__init__("interrupted")
        self.night = night
        code = stop.code if isinstance(stop, SystemExit) else None
        self.exit_code = code if isinstance(code, int) else int(ExitCode.INTERRUPTED)
        """The exit code of the program: 128 plus the number of a signal."""


@dataclass(frozen=True, kw_only=True)
class Night:
    """A run of the gate."""

    suite: Suite
    baseline: Baseline
    baseline_path: Path
    probe: Probe
    home: Home | None = None
    """The suite's file in its repository; None outside of git."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that change what is allocated."""
    unwatched: tuple[str, ...] = ()
    """Cases that only the baseline has, to be reported."""
    jobs: int = 1
    """Cases side by side."""
    strict: bool = False
    commit_of: CommitOf = field(default=lambda _case: None)
    announce: Announce = field(default=lambda _done, _total, _case: None)

    def run(self) -> GateResult:
        """Measure and compare all cases, and return the results in the order of the suite.

        Raises:
            InterruptedNight: Ctrl-C, or a signal that asks to end, after something was measured.
        """
        started = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        done: dict[str, CaseResult] = {}
        calls = [self._call(case, done) for case in self.suite.cases]
        try:
            with contextlib.closing(side_by_side(calls, self.jobs)) as answers:
                for count, (_, case) in enumerate(answers, start=1):
                    self.announce(count, len(calls), case)
        except (KeyboardInterrupt, SystemExit) as stop:
            if not any(case.values or case.first_values for case in done.values()):
                raise
            raise InterruptedNight(self._result(started, done, interrupted=True), stop) from None
        return self._result(started, done)

    def _result(self, started: str, done: Mapping[str, CaseResult], *, interrupted: bool = False) -> GateResult:
        reason = "interrupted before it was measured"
        return GateResult(
            night=secrets.token_hex(8),
            started=started,
            suite=str(real_path(self.suite.path)),
            home=self.home,
            baseline=str(real_path(self.baseline_path)),
            variables=self.variables,
            strict=self.strict,
            oomscope=oomscope.__version__,
            unwatched=self.unwatched,
            interrupted=interrupted,
            cases=tuple(
                done.get(case.name)
                or CaseResult(name=case.name, status=Status.UNMEASURED, reason=reason, line=case.line)
                for case in self.suite.cases
            ),
        )

    def _call(self, case: Case, done: dict[str, CaseResult]) -> Callable[[threading.Event], CaseResult]:
        """Return a function that measures a case, and puts the result into ``done`` also after an interrupt."""

        def call(stop: threading.Event) -> CaseResult:
            done[case.name] = self.measure(case, stop)
            return done[case.name]

        return call

    def measure(self, case: Case, stop: threading.Event) -> CaseResult:
        """Measure and compare one case; where it is worse, or on a card better, once more.

        Raises:
            StoppedError: ``stop`` was set.
        """
        try:
            checkout = None if case.own_kind is None else str(real_path(case.checkout))
            standing = self.commit_of(case)
            return replace(self._answer(case, stop), standing=standing, line=case.line, checkout=checkout)
        except StoppedError:
            raise
        except Exception as error:  # noqa: BLE001 - a defect in one case hides no other
            return replace(_defect(case, error), line=case.line)

    def _answer(self, case: Case, stop: threading.Event) -> CaseResult:
        try:
            plan = plan_of(case)
        except OomscopeError as error:
            return CaseResult(name=case.name, status=Status.UNUSABLE, reason=str(error))
        first = self._measured(case, plan, stop)
        may_vary = first.key is not None and first.key.backend != "virtual"
        if first.status is not Status.WORSE and not (may_vary and first.is_better):
            return first
        try:
            again = self._measured(case, plan, stop)
        except StoppedError:
            reason = "interrupted before it was measured again"
            again = CaseResult(name=case.name, status=Status.UNMEASURED, reason=reason)
        except Exception as error:  # noqa: BLE001 - a defect hides neither the first measurement nor other cases
            again = _defect(case, error)
        return confirmed(first, again)

    def _measured(self, case: Case, plan: CasePlan, stop: threading.Event) -> CaseResult:
        try:
            result = plan.measure(self.probe, stop)
        except OomscopeError as error:  # a variable of the environment, no room for temporary files
            status = Status.UNUSABLE if error.exit_code is ExitCode.USAGE else Status.UNFIT
            return CaseResult(name=case.name, status=status, reason=str(error))
        comparison = compare_case(case, result, self.baseline)
        key = None if result.outcome == "error" else Key.of(case.digest, result)
        entry = None if key is None else self.baseline.find(case.name, key)
        rank = plan.rank_text(result.rank)
        return CaseResult(
            name=case.name,
            status=comparison.status,
            reason=comparison.reason,
            rows=comparison.rows,
            key=key,
            outcome=result.outcome,
            expected_outcome=comparison.expected_outcome,
            values=values_of(result),
            rank=rank,
            notes=(*plan.notes, *result.notes, *_other_entry(entry, rank)),
            probe=result,
        )


def _defect(case: Case, error: Exception) -> CaseResult:
    return CaseResult(name=case.name, status=Status.DEFECT, reason=f"{traced(error)}; {REPORT_IT}")


def _other_entry(entry: Entry | None, rank: str) -> Iterator[str]:
    """Yield what other than the code may have changed the numbers since ``entry``."""
    if entry is not None and entry.oomscope not in {"", oomscope.__version__}:
        yield f"the baseline was measured by oomscope {entry.oomscope}, this is {oomscope.__version__}"
    if entry is not None and entry.rank not in {"", rank}:
        yield f"the baseline is of rank {entry.rank}, and this is rank {rank or '0 of 1'}: their numbers are compared"


_SURPRISES = frozenset({Status.WORSE, Status.BETTER})
"""Statuses that have to be measured twice."""


def confirmed(first: CaseResult, again: CaseResult) -> CaseResult:
    """Return the second measurement of a case that was worse or better at first, with its status after both.

    A regression is a metric that is worse twice, running out of memory twice, or running out of it after a metric was
    worse; an improvement is a metric that is better twice. A second measurement that cannot be compared decides the
    status, with the first one in its reason; where it measured nothing, the numbers of the first are shown.
    """
    seen = replace(again, first_values=first.values)
    if first.status is again.status is Status.WORSE and again.ran_out:
        return seen
    sought = Status.WORSE if first.status is Status.WORSE else Status.BETTER
    then = f"{sought} at first ({_metrics(first, sought)})"
    if not again.values:
        seen = replace(
            seen,
            rows=tuple(_unconfirmed(row) for row in first.rows),
            expected_outcome=first.expected_outcome,
            rank=first.rank,
            probe=again.probe or first.probe,
        )
    else:
        rows = (row if row.name in _named(first, row.status) else _unconfirmed(row) for row in again.rows)
        seen = replace(seen, rows=tuple(rows))
    if again.status not in GREEN | {Status.WORSE}:
        return replace(seen, reason="; ".join(filter(None, (again.reason, then))))
    is_same_metric = bool(_named(first, sought) & _named(again, sought))
    is_fit_twice = sought is Status.BETTER and first.came_to_fit and again.came_to_fit
    if again.status in {sought, Status.WARN} and (is_same_metric or is_fit_twice):
        return seen
    now = f"{again.status} ({_metrics(again, again.status)})" if again.status in _SURPRISES else str(again.status)
    return replace(seen, status=Status.UNCONFIRMED, reason=f"{then}, and {now} when it was measured again")


def _unconfirmed(row: MetricRow) -> MetricRow:
    return replace(row, status=Status.UNCONFIRMED) if row.status in _SURPRISES else row


def _named(case: CaseResult, status: Status) -> set[str]:
    return {row.name for row in case.rows if row.status is status}


def _metrics(case: CaseResult, status: Status) -> str:
    """Return the metrics that are ``status``; the reason where the case ran out of memory, or none is."""
    if case.ran_out and status is Status.WORSE:
        return case.reason
    return ", ".join(row.name for row in case.rows if row.status is status) or case.reason
