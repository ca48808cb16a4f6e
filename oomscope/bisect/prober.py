"""Answers a search's questions: from memory, from the cache, else by running a probe; and keeps the record."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol, TypedDict, Unpack

from oomscope.bisect.cache import ResultCache
from oomscope.bisect.deadline import Deadline, OutOfTimeError
from oomscope.bisect.experiment import Experiment, Untestable
from oomscope.bisect.identity import Machine, digest_of, key_of
from oomscope.bisect.logs import Logs
from oomscope.bisect.measured import bytes_of, is_lower_bound
from oomscope.bisect.predicate import Bad, Judgement
from oomscope.bisect.reporter import Reporter, Silent
from oomscope.bisect.request import SearchRequest
from oomscope.bisect.result import ProbeRecord, Role
from oomscope.bisect.search import Answer
from oomscope.errors import GitError, InconclusiveError, MachineUnfitError, TargetError
from oomscope.probe import warm
from oomscope.probe.job import HarnessTarget, ProbeJob, Progress
from oomscope.probe.ranks import probe_ranks
from oomscope.probe.result import ProbeResult

_ABBREVIATED = 10


class Probe(Protocol):
    """Measures a job; :func:`oomscope.probe.warm.run` does."""

    def __call__(self, job: ProbeJob, progress: Callable[[Progress], None] | None = None, /) -> ProbeResult:
        """Return what came of ``job``; never raises for what the target does."""
        ...


class Means(TypedDict, total=False):
    """What a search works with; each has a default."""

    probe: Probe
    """Measures one job; :func:`oomscope.probe.warm.run` unless given."""
    reporter: Reporter
    """Told of every probe as it comes; nobody unless given."""
    clock: Callable[[], float]
    """Seconds, for the deadline."""
    environment: Mapping[str, str]
    """The variables that probes see; the process's own unless given."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked, as records and people name it."""

    role: Role
    name: str
    commit: str | None = None
    subject: str = ""
    keys: tuple[str, ...] | None = None


@dataclass
class Prober:
    """Runs experiments and judges them.

    Args:
        probe: measures one job.
        bad: what counts as bad.
        reporter: told of every question and answer.
        cache: results of earlier searches; None asks everything anew.
        logs: where the output of probes that failed is kept; None keeps none.
        deadline: when to stop.
        environment: the variables that probes will see.
    """

    probe: Probe
    bad: Bad
    reporter: Reporter
    cache: ResultCache | None = None
    logs: Logs | None = None
    deadline: Deadline = field(default_factory=lambda: Deadline(None))
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    records: list[ProbeRecord] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _results: dict[str, ProbeResult] = field(default_factory=dict)
    _ran: bool = False

    @classmethod
    def of(cls, request: SearchRequest, **means: Unpack[Means]) -> Prober:
        """Return the prober that ``request`` asks for; its deadline runs from now."""
        prober = cls(
            probe=means.get("probe", warm.run),
            bad=request.bad,
            reporter=means.get("reporter", Silent()),
            deadline=Deadline.after(request.deadline_s, means.get("clock", time.monotonic)),
            environment=means.get("environment", os.environ),
        )
        prober.logs = Logs(request.places.logs, prober.note)
        if request.use_cache:
            prober.cache = ResultCache(request.places.results, prober.note)
        return prober

    def ask(self, question: Question, experiment: Experiment | Untestable) -> tuple[ProbeRecord, ProbeResult | None]:
        """Return the answer to ``question``, and the result that it rests on where something was measured.

        Args:
            question: its names.
            experiment: what to measure.

        Raises:
            OutOfTimeError: the deadline passed before there was an answer; nothing is recorded.
            MachineUnfitError: this machine cannot probe at all.
            InconclusiveError: the harness cannot be one.
        """
        number = len(self.records) + 1
        self.reporter.probing(question.name, number)
        started = self.deadline.clock()
        found = self._measured(experiment)
        result = None if isinstance(found, Untestable) else found
        judgement = (
            Judgement(answer=Answer.UNTESTABLE, reason=found.reason)
            if isinstance(found, Untestable)
            else self.bad.judge(found)
        )
        record = ProbeRecord(
            number=number,
            role=question.role,
            commit=question.commit,
            subject=question.subject,
            keys=question.keys,
            answer=judgement.answer,
            reason=judgement.reason,
            outcome=result.outcome if result else None,
            bytes=bytes_of(result) if result else None,
            is_lower_bound=is_lower_bound(result) if result else False,
            cached=result is not None and not self._ran,
            wall_s=self.deadline.clock() - started,
            log=self._log_of(question, result),
        )
        self.records.append(record)
        self.reporter.probed(record)
        return record, result

    def note(self, text: str) -> None:
        """Keep ``text`` for the report, once."""
        if text not in self.notes:
            self.notes.append(text)

    def _log_of(self, question: Question, result: ProbeResult | None) -> str | None:
        if self.logs is None or result is None or result.failure is None:
            return None
        return self.logs.keep(result.failure.detail, question.commit[:_ABBREVIATED] if question.commit else "keys")

    def _measured(self, experiment: Experiment | Untestable) -> ProbeResult | Untestable:
        if isinstance(experiment, Untestable):
            return experiment
        self._ran = False
        try:
            return probe_ranks(experiment.job, list(experiment.ranks), lambda job: self._result(experiment, job))
        except (GitError, TargetError) as error:
            return Untestable(str(error))

    def _result(self, experiment: Experiment, job: ProbeJob) -> ProbeResult:
        """Return the result of one rank: what is known already, else of a probe."""
        key = key_of(job, experiment.content, self._machine, self.environment)
        name = digest_of(key)
        known = self._results.get(name) or (self.cache.get(key) if self.cache else None)
        if known is None:
            self._ran = True
            missing = experiment.lay_out()
            for line in missing:
                self.note(line)
            known = self._run(job)
            if self.cache and not missing:  # what lacks today (a submodule, a large file) may be there tomorrow
                self.cache.put(key, known)
        self._results[name] = known
        return known

    def _run(self, job: ProbeJob) -> ProbeResult:
        """Run a probe; one that was killed from outside gets a second chance."""
        result = self._run_once(job)
        if result.failure is not None and result.failure.kind == "killed":
            result = self._run_once(job)
        if result.failure is not None and result.failure.kind == "unfit":
            raise MachineUnfitError(result.failure.message)
        if result.failure is not None and result.failure.kind == "usage":
            raise InconclusiveError(result.failure.message, remedy="then search again: what was measured is kept")
        return _without_checkout(result, job)

    def _run_once(self, job: ProbeJob) -> ProbeResult:
        left = self.deadline.left_s
        if left <= 0:
            raise OutOfTimeError
        result = self.probe(replace(job, timeout_s=min(job.timeout_s, left)), self.reporter.progressed)
        timed_out = result.failure is not None and result.failure.kind == "timeout"
        if (timed_out or result.demand_cut) and self.deadline.left_s <= 0:
            raise OutOfTimeError
        return result

    @cached_property
    def _machine(self) -> Machine:
        return Machine.here(self.environment)


def _without_checkout(result: ProbeResult, job: ProbeJob) -> ProbeResult:
    """Return ``result`` with the path of the disposable checkout cut off wherever it is named."""
    if not isinstance(job.target, HarnessTarget):
        return result
    prefix = json.dumps(f"{job.target.repo}/")[1:-1]
    return ProbeResult.from_json(json.loads(json.dumps(result.to_json()).replace(prefix, "")))
