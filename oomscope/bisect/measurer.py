"""Makes one measurement: lays out a checkout in its slot, gets it ready, and runs a probe of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from oomscope.bisect.cards import Cards
from oomscope.bisect.deadline import Deadline, OutOfTimeError
from oomscope.bisect.executors import Action, Measured
from oomscope.bisect.experiment import Experiment
from oomscope.bisect.runners import Runner
from oomscope.bisect.slots import Slots
from oomscope.bisect.workplace import Workplace
from oomscope.probe.job import CheckoutTarget, ProbeJob, Progress
from oomscope.probe.machine.environment import child_environment, own_environment
from oomscope.probe.process.launch import StoppedError
from oomscope.probe.result import ProbeResult


@dataclass(frozen=True, kw_only=True)
class Measurer:
    """Measures jobs, each in a slot of its own; threads may share it."""

    runner: Runner
    """Runs probes."""
    deadline: Deadline
    """When nobody wants results any more."""
    cards: Cards
    """What probes on GPUs get one each of."""
    slots: Slots
    """Where checkouts stand."""

    def begin(self, experiment: Experiment, job: ProbeJob) -> Callable[[int], Action]:
        """Return what, given the number of a slot, returns the measurement of one rank of ``experiment`` there.

        What was lost is tried again, with the files laid out anew: who lost them may have written there.
        The measurement raises GitError or TargetError where the files cannot be laid out or made ready, OutOfTimeError
        after the deadline, and StoppedError where nobody wants the result any more.
        """

        def begin(slot: int) -> Action:
            def action(progressed: Callable[[Progress], None], stop: threading.Event) -> Measured:
                for left in reversed(range(1 + self.runner.retries)):
                    with self.slots.lent(job, slot) as placed:
                        measured = self._measure(experiment, placed, progressed, stop)
                    if not left or not _is_lost(measured.result):
                        break
                return _with_tries(measured, 1 + self.runner.retries)

            return action

        return begin

    def _measure(
        self, experiment: Experiment, job: ProbeJob, progressed: Callable[[Progress], None], stop: threading.Event
    ) -> Measured:
        """Lay out the files and run a probe; one that was killed from outside gets a second chance."""
        place = Path(job.target.repo) if isinstance(job.target, CheckoutTarget) else Path()
        missing = experiment.lay_out(place)
        workplace = Workplace(
            directory=place,
            environment=child_environment(job, own_environment()),
            deadline=self.deadline,
            stop=stop,
        )
        experiment.prepare(workplace)
        with self.cards.lent(job) as alone:
            result = self._run(alone, progressed, stop)
            if result.failure is not None and result.failure.kind == "killed":
                result = self._run(alone, progressed, stop)
        return Measured(result=_without_checkout(result, job), missing=missing)

    def _run(self, job: ProbeJob, progressed: Callable[[Progress], None], stop: threading.Event) -> ProbeResult:
        left = self.deadline.left_s
        if stop.is_set():
            raise StoppedError
        if left <= 0:
            raise OutOfTimeError
        job = replace(job, timeout_s=min(job.timeout_s, left))
        result = self.runner.run(job, progressed, stop=stop)
        timed_out = result.failure is not None and result.failure.kind == "timeout"
        if (timed_out or result.demand_cut) and self.deadline.left_s <= 0:
            raise OutOfTimeError
        return result


def _is_lost(result: ProbeResult) -> bool:
    return result.failure is not None and result.failure.kind == "lost"


def _with_tries(measured: Measured, tries: int) -> Measured:
    """Return ``measured``, of which a report says after how many tries it was lost, if it was."""
    failure = measured.result.failure
    if failure is None or not _is_lost(measured.result):
        return measured
    failure = replace(failure, message=f"each of {tries} tries was lost; the last, {failure.message}")
    return replace(measured, result=replace(measured.result, failure=failure))


def _without_checkout(result: ProbeResult, job: ProbeJob) -> ProbeResult:
    """Return ``result`` with the path of the disposable checkout cut off wherever it is named."""
    if not isinstance(job.target, CheckoutTarget):
        return result
    prefix = json.dumps(f"{job.target.repo}/")[1:-1]
    return ProbeResult.from_json(json.loads(json.dumps(result.to_json()).replace(prefix, "")))
