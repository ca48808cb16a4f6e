"""A night: every case is probed and compared, and what is red is measured again before anybody is told.

On a card the same holds for what is better: a lucky measurement makes no new baseline.
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
from oomscope.gate.night.cases import CasePlan, Probe, plan_of, traced
from oomscope.gate.night.compare import REPORT_IT, Comparison, MetricRow, band_notes, compare_case
from oomscope.gate.night.result import CaseResult, GateResult, Standing
from oomscope.gate.night.status import GREEN, Status
from oomscope.gate.suite.identity import Home
from oomscope.gate.suite.metrics import values_of
from oomscope.gate.suite.suite import Case, Suite, suite_id
from oomscope.probe.process.launch import StoppedError
from oomscope.probe.result import ProbeResult
from oomscope.probe.tuning.variants import side_by_side

Announce = Callable[[int, int, CaseResult], None]
"""Told of each case as it is done: how many are, of how many, and the case."""
StandsAt = Callable[[Case], Standing | None]
"""Where a case stands in its history; None where it has none."""
_NOT_YET = "interrupted before it was measured"
_NOT_AGAIN = "interrupted before it was measured again"


class InterruptedNight(KeyboardInterrupt):
    """Somebody ended a night of which some cases were measured.

    Args:
        night: what came of these; the others say that they were not measured.
        stop: what ended it.
    """

    def __init__(self, night: GateResult, stop: KeyboardInterrupt | SystemExit) -> None:
        super().__init__("interrupted")
        self.night = night
        asked = stop.code if isinstance(stop, SystemExit) else None
        self.exit_code = asked if isinstance(asked, int) else int(ExitCode.INTERRUPTED)
        """What the program ends with: 128 and the number of a signal."""


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
        """Measure and compare all cases, and return what came of them in the order of the suite.

        Raises:
            InterruptedNight: Ctrl-C, or a signal that asks to end, after something was measured.
        """
        started = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        done: dict[int, CaseResult] = {}
        calls = [self._call(number, done) for number in range(len(self.suite.cases))]
        try:
            with contextlib.closing(side_by_side(calls, self.jobs)) as answers:
                for told, (_, case) in enumerate(answers, start=1):
                    self.announce(told, len(calls), case)
        except (KeyboardInterrupt, SystemExit) as stop:
            if not any(case.values or case.first_values for case in done.values()):
                raise
            raise InterruptedNight(self._result(started, done, interrupted=True), stop) from None
        return self._result(started, done)

    def _result(self, started: str, done: Mapping[int, CaseResult], *, interrupted: bool = False) -> GateResult:
        """Return the night; a case that is none of ``done`` was not measured, since somebody ended the night."""
        missing = {
            number: CaseResult(name=case.name, status=Status.UNMEASURED, reason=_NOT_YET, line=case.line)
            for number, case in enumerate(self.suite.cases)
            if number not in done
        }
        cases = {**done, **missing}
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
            interrupted=interrupted,
            cases=tuple(cases[number] for number in range(len(cases))),
        )

    def _call(self, number: int, done: dict[int, CaseResult]) -> Callable[[threading.Event], CaseResult]:
        """Return what measures a case, and puts what came of it among ``done`` also where nobody waits any more."""

        def call(stop: threading.Event) -> CaseResult:
            done[number] = self.measure(self.suite.cases[number], stop)
            return done[number]

        return call

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
            return CaseResult(
                name=case.name, status=Status.DEFECT, reason=f"{traced(error)}; {REPORT_IT}", line=case.line
            )

    def _answer(self, case: Case, stop: threading.Event) -> CaseResult:
        try:
            plan = plan_of(case)
        except OomscopeError as error:
            return CaseResult(name=case.name, status=Status.UNUSABLE, reason=str(error))
        first = self._measured(case, plan, stop)
        return confirmed(first, self._again(case, plan, stop)) if calls_for_more(first) else first

    def _again(self, case: Case, plan: CasePlan, stop: threading.Event) -> CaseResult:
        """Measure a case once more; whatever hinders it, what the first measurement said is not lost."""
        try:
            return self._measured(case, plan, stop)
        except StoppedError:
            return CaseResult(name=case.name, status=Status.UNMEASURED, reason=_NOT_AGAIN)
        except Exception as error:  # noqa: BLE001 - a defect hides neither the first measurement nor other cases
            return CaseResult(name=case.name, status=Status.DEFECT, reason=f"{traced(error)}; {REPORT_IT}")

    def _measured(self, case: Case, plan: CasePlan, stop: threading.Event) -> CaseResult:
        try:
            result = plan.measure(self.probe, stop)
        except OomscopeError as error:  # a variable of the environment, no room for temporary files
            status = Status.UNUSABLE if error.exit_code is ExitCode.USAGE else Status.UNFIT
            return CaseResult(name=case.name, status=status, reason=str(error))
        comparison = compare_case(case, result, self.baseline)
        entry = None if result.outcome == "error" else self.baseline.find(case.name, Key.of(case.digest, result))
        rank = plan.rank_text(result.rank)
        bands = band_notes(case, comparison.rows, result.limit_bytes)
        told = _case_result(case, result, comparison)
        return replace(told, rank=rank, notes=(*plan.notes, *result.notes, *_other_entry(entry, rank), *bands))


def _other_entry(entry: Entry | None, rank: str) -> Iterator[str]:
    """Yield what else than the code may make the numbers of ``entry`` other ones."""
    if entry is None:
        return
    if entry.oomscope not in {"", oomscope.__version__}:
        yield f"the baseline is of oomscope {entry.oomscope}, this is {oomscope.__version__}"
    if entry.rank not in {"", rank}:
        yield f"the baseline is of rank {entry.rank}, and this is rank {rank or '0 of 1'}: their numbers are compared"


def _case_result(case: Case, result: ProbeResult, comparison: Comparison) -> CaseResult:
    return CaseResult(
        name=case.name,
        status=comparison.status,
        reason=comparison.reason,
        rows=comparison.rows,
        key=None if result.outcome == "error" else Key.of(case.digest, result),
        outcome=result.outcome,
        expected_outcome=comparison.expected_outcome,
        values=values_of(result),
        probe=result,
    )


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
