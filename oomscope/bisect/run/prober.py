"""Answers a search's questions: measures or remembers, judges, reports, and keeps the record.

A probe passes three objects: the :class:`Prober`, the scheduler that keeps slots busy, and the runner that measures.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self, TypedDict, Unpack

from oomscope.bisect.journal.store import Journal
from oomscope.bisect.results.predicate import Bad, Judgement
from oomscope.bisect.results.reporter import Reporter, SearchPlan, SilentReporter
from oomscope.bisect.results.result import BisectResult, Cost, ProbeRecord, Role
from oomscope.bisect.run.cache import ResultCache, keep_output
from oomscope.bisect.run.experiment import Deadline, Experiment, OutOfTimeError
from oomscope.bisect.run.identity import Machine, digest_of, key_of
from oomscope.bisect.run.runner import LocalRunner, Runner, SlotRunner, runner_of
from oomscope.bisect.run.scheduler import Scheduler, Task, Threads
from oomscope.bisect.run.slurm import SbatchOptions
from oomscope.bisect.run.state_dirs import JournalUse, StateDirs
from oomscope.bisect.search.line import Answer
from oomscope.bisect.search.measured import Measured, Untestable, bytes_of, leak_bytes_of
from oomscope.bisect.search.repeats import Noise
from oomscope.bisect.vcs.repository import ABBREVIATED
from oomscope.errors import InconclusiveError, MachineUnfitError, OomscopeError, TargetError
from oomscope.probe.demand import is_lower_bound
from oomscope.probe.job import ProbeJob
from oomscope.probe.ranks import probe_ranks, ranks_left_out
from oomscope.probe.result import ProbeResult

_NUMBER = re.compile(r"\d+")

Ahead = Callable[[], Iterable[Experiment | Untestable]]
"""Returns what is likely to be asked next, likeliest first."""
AnswerAndResult = tuple[ProbeRecord, ProbeResult | None]
"""An answer, with the result that it rests on where something was measured."""


@dataclass(frozen=True, kw_only=True)
class SearchRequest:
    """What the requests of all searches have in common."""

    bad: Bad = field(default_factory=Bad)
    deadline_s: float | None = None
    """Seconds after which the search ends with what it knows; None for no end."""
    use_cache: bool = True
    """Take results of earlier searches; those of this one are kept in any case."""
    state_dirs: StateDirs = field(default_factory=StateDirs.default)
    jobs: int = 1
    """Probes side by side: what is likely to be asked next begins early. It changes no answer."""
    cluster: SbatchOptions | None = None
    """How probes run as jobs; None for this machine."""
    journal: JournalUse = field(default_factory=JournalUse)
    """Begin a journal, or continue one."""
    noise: Noise | None = None
    """How to treat answers that may be wrong; None leaves it to the backend."""

    @property
    def revisions(self) -> dict[str, str]:
        """The revisions that it names, by side: ``good``, ``bad``."""
        return {}

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that answers depend on."""
        return ()

    def pinned(self, _commits: Mapping[str, str]) -> Self:
        """Return the request with hashes of commits, by side, in place of the revisions."""
        return self


class Services(TypedDict, total=False):
    """What a search works with; each has a default."""

    probe: Callable[[ProbeJob, Any], ProbeResult]
    """Measures one job, to its end, in place of the runner."""
    executor: Threads
    """Does the work; as many threads as the request has jobs unless given."""
    reporter: Reporter
    """Receives every probe as it comes; none unless given."""
    clock: Callable[[], float]
    """Returns seconds, for the deadline."""
    environment: Mapping[str, str]
    """The variables that probes see; the process's own unless given."""
    journal: Journal
    """The journal, asked before anything is measured; searches that keep one give their own."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked, as records and people name it."""

    role: Role
    name: str
    commit: str | None = None
    subject: str = ""
    keys: tuple[str, ...] | None = None


class _UntestableError(TargetError):
    """One rank of an experiment cannot be measured."""

    def __init__(self, untestable: Untestable) -> None:
        super().__init__(untestable.reason)
        self.untestable = untestable


def _result_of(measured: Measured) -> ProbeResult:
    if isinstance(measured.answer, Untestable):
        raise _UntestableError(measured.answer)
    return measured.answer


@dataclass
class Prober:
    """Measures experiments, each once, and judges them; as a context manager it ends all that still runs.

    Args:
        runner: runs probes.
        bad: what counts as bad.
        reporter: told of every question and answer.
        cache: results of earlier searches; None asks everything anew.
        logs: where the output of failed probes is kept; None keeps none.
        deadline: when to stop.
        environment: the variables that probes will see.
        scheduler: does the work.
        cards: probes on GPUs get one each of these; without any, they take what they see.
        journal: has the answers of an interrupted search; every answer is written to it.
    """

    runner: Runner
    bad: Bad
    reporter: Reporter
    cache: ResultCache | None = None
    logs: Path | None = None
    deadline: Deadline = field(default_factory=lambda: Deadline(None))
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    scheduler: Scheduler = field(default_factory=lambda: Scheduler(Threads(1)))
    cards: tuple[str, ...] = ()
    journal: Journal | None = None
    records: list[ProbeRecord] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _asked: Counter[str] = field(default_factory=Counter)
    """Number of questions about each content, by its key's name."""
    _known_by_name: dict[str, Measured] = field(default_factory=dict)
    """Measurements by the name of their key."""
    _began: float = field(init=False)
    _is_out_of_time: bool = False
    _left_out: str = ""
    """Sentence on the ranks of the bad end that were not measured."""

    def __post_init__(self) -> None:
        self._began = self.deadline.clock()
        if self.journal is not None:
            self._known_by_name |= self.journal.kept

    @classmethod
    def of(cls, request: SearchRequest, **services: Unpack[Services]) -> Prober:
        """Return the prober that ``request`` asks for; its deadline runs from now."""
        deadline = Deadline.after(request.deadline_s, services.get("clock", time.monotonic))
        runner = runner_of(request.cluster, request.state_dirs, deadline)
        if "probe" in services:
            probe = services["probe"]
            runner = LocalRunner(run=lambda job, progress, **_: probe(job, progress))
        environment = services.get("environment", os.environ)
        reporter = services.get("reporter", SilentReporter())
        prober = cls(
            runner=runner,
            bad=request.bad,
            reporter=reporter,
            logs=request.state_dirs.logs,
            deadline=deadline,
            environment=environment,
            scheduler=Scheduler(services.get("executor") or Threads(request.jobs), reporter.at_work),
            cards=runner.cards(environment) if request.jobs > 1 else (),
            journal=services.get("journal"),
        )
        prober.cache = ResultCache(request.state_dirs.results, prober.note, is_read=request.use_cache)
        return prober

    def __enter__(self) -> Self:
        """Make ready to run probes."""
        self.runner.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """End all that still runs."""
        try:
            self.scheduler.close()
        finally:
            self.runner.__exit__(*error)

    def announce(self, plan: SearchPlan) -> None:
        """Begin the journal and report ``plan``."""
        if self.journal is not None:
            self.journal.open()
        self.reporter.planned(plan)

    def ask(self, question: Question, experiment: Experiment | Untestable, ahead: Ahead = tuple) -> AnswerAndResult:
        """Return the answer to ``question``, and the result that it rests on where something was measured.

        Args:
            question: its names.
            experiment: what to measure.
            ahead: what is likely to be asked next, which idle slots begin meanwhile. It changes no answer, and only
                as many experiments are read from it as there are slots.

        Raises:
            OutOfTimeError: the deadline passed before there was an answer; nothing is recorded.
            MachineUnfitError: this machine cannot probe at all.
            InconclusiveError: the harness is not a harness.
        """
        number = len(self.records) + 1
        self.reporter.probing(question.name, number)
        started = self.deadline.clock()
        try:
            found, measured, has_run = self._measured(experiment, ahead)
        except OutOfTimeError:
            self._is_out_of_time = True
            raise
        result = None if isinstance(found, Untestable) else found
        judgement = self._judged(found)
        record = ProbeRecord(
            number=number,
            role=question.role,
            commit=question.commit,
            subject=question.subject,
            keys=question.keys,
            answer=judgement.answer,
            reason=judgement.reason,
            outcome=result.outcome if result else None,
            peak=bytes_of(result),
            is_lower_bound=is_lower_bound(result) if result else False,
            leak_bytes=leak_bytes_of(result),
            cached=result is not None and not has_run,
            wall_s=self.deadline.clock() - started,
            probe_s=result.wall_s if result else 0.0,
            repeat=experiment.repeat if isinstance(experiment, Experiment) else 0,
            log=self._log_of(question, found),
        )
        self.records.append(record)
        for text in result.notes if result else ():
            self._note_of_probe(number, text)
        if isinstance(experiment, Experiment):
            self._asked[self.content_of(experiment)] += 1
        if question.role == "bad end" and result is not None:
            self._left_out = ranks_left_out(result)
        if self.journal is not None:
            self.journal.probed(record, measured)
        self.reporter.probed(record)
        return record, result

    def _measured(
        self, experiment: Experiment | Untestable, ahead: Ahead
    ) -> tuple[ProbeResult | Untestable, dict[str, Measured], bool]:
        """Return the measurement of each rank of ``experiment`` by name of its key, and whether a probe ran for it."""
        measured: dict[str, Measured] = {}
        begun = self.scheduler.taken
        if isinstance(experiment, Untestable):
            return experiment, measured, False

        def take(job: ProbeJob) -> ProbeResult:
            name, known = self._found(experiment, job, ahead)
            measured[name] = self._known_by_name[name] = known
            for line in known.remarks:
                self.note(line)
            return _result_of(known)

        found: ProbeResult | Untestable
        try:
            found = probe_ranks(experiment.job, list(experiment.ranks), take)
        except _UntestableError as error:
            found = error.untestable
        return found, measured, self.scheduler.taken > begun

    def with_cures(self, experiment: Experiment | Untestable, result: ProbeResult) -> ProbeResult:
        """Return ``result``; if it failed by fragmentation on a virtual card, measured again with its cures run whole.

        It stays as it is, with the cures of the replay, if the deadline passes or the repeated run has no verdict.
        """
        from oomscope.probe.analysis.cures import is_wanted

        if not isinstance(experiment, Experiment) or result.backend != "virtual":
            return result
        job = replace(experiment.job, rank=result.rank, confirm=True)
        if not is_wanted(job, "virtual", result.verdict):
            return result
        try:
            answer = self._found(experiment, job, tuple)[1].answer
        except OutOfTimeError:
            return result
        return answer if isinstance(answer, ProbeResult) and answer.verdict is not None else result

    def known_answer(self, experiment: Experiment | Untestable) -> Answer | None:
        """Return what the answer to ``experiment`` would be, where that is known already or nothing can be measured."""
        if isinstance(experiment, Untestable):
            return Answer.UNTESTABLE

        def look_up(job: ProbeJob) -> ProbeResult:
            return _result_of(self._found(experiment, job, None)[1])

        try:
            return self._judged(probe_ranks(experiment.job, list(experiment.ranks), look_up)).answer
        except _UntestableError:
            return Answer.UNTESTABLE
        except LookupError:
            return None

    def times(self, experiment: Experiment) -> int:
        """Return how often what ``experiment`` measures was asked about, of whichever commit that holds it."""
        return self._asked[self.content_of(experiment)]

    def content_of(self, experiment: Experiment) -> str:
        """Return a name of what ``experiment`` measures, whichever measurement of it this is."""
        return self._key(experiment.repeated(0), experiment.job)[0]

    def note(self, text: str) -> None:
        """Keep ``text`` for the report, once; only the first of notes that differ in their example alone."""
        kind, example, _ = text.partition(" (such as ")
        if not any(note == text or (example and note.startswith(kind + example)) for note in self.notes):
            self.notes.append(text)

    def completed(self, result: BisectResult) -> BisectResult:
        """Return ``result`` with the probes, notes and cost of the search so far.

        That nothing is at fault says which ranks it does not hold for.
        """
        left_out = self._left_out if result.outcome == "no_culprit" else ""
        wall_s, slots = self.deadline.clock() - self._began, self.scheduler.executor.slots
        cost = Cost(wall_s=wall_s, slots=slots, begun=self.scheduler.begun)
        return replace(
            result,
            message="; ".join(filter(None, (result.message, left_out))),
            probes=tuple(self.records),
            notes=tuple(self.notes),
            cost=cost,
            lacks_a_probe=self._is_out_of_time,
        )

    def _judged(self, found: ProbeResult | Untestable) -> Judgement:
        if isinstance(found, Untestable):
            return Judgement(answer=Answer.UNTESTABLE, reason=found.reason)
        return self.bad.judge(found)

    def _note_of_probe(self, number: int, text: str) -> None:
        """Keep a note of a probe; only the first of notes that differ in numbers alone."""
        kind = _NUMBER.sub("0", text)
        if not any(_NUMBER.sub("0", note).startswith(f"{kind} (first in probe ") for note in self.notes):
            self.note(f"{text} (first in probe {number})")

    def _log_of(self, question: Question, found: ProbeResult | Untestable) -> str | None:
        output = found.output if isinstance(found, Untestable) else found.failure.detail if found.failure else ""
        if self.logs is None:
            return None
        name = question.commit[:ABBREVIATED] if question.commit else "keys"
        return keep_output(self.logs, output, name, self.note)

    def _run(self, name: str, key: dict[str, Any], experiment: Experiment, job: ProbeJob, ahead: Ahead) -> Measured:
        """Probe one rank now."""
        task = self._task(name, experiment, job)
        measured = self.scheduler.take(task, lambda: self._tasks(ahead()))
        if isinstance(measured.answer, Untestable):
            return measured
        failure = measured.answer.failure
        if failure is not None and failure.kind == "unfit":
            raise MachineUnfitError(failure.message)
        if failure is not None and failure.kind == "usage":
            raise InconclusiveError(failure.message, remedy="then search again: what was measured is kept")
        if failure is not None and failure.kind == "internal":
            raise OomscopeError(failure.message, remedy="please report it")
        # What is missing today (a submodule, a large file) may be there tomorrow.
        if self.cache and not measured.remarks and not experiment.repeat:
            self.cache.put(key, measured.answer)
        return measured

    def _key(self, experiment: Experiment, job: ProbeJob) -> tuple[str, dict[str, Any]]:
        """Return the name and the key of the result of one rank."""
        key = key_of(job, experiment.content, self._machine, self.environment)
        if experiment.repeat:
            key["repeat"] = experiment.repeat
        return digest_of(key), key

    def _found(self, experiment: Experiment, job: ProbeJob, ahead: Ahead | None) -> tuple[str, Measured]:
        """Return the name and the measurement of one rank; what is not known is measured now."""
        name, key = self._key(experiment, job)
        known = self._known(name, key)
        if known is None:
            known = self.scheduler.peek(name) if ahead is None else self._run(name, key, experiment, job, ahead)
        if known is None:
            raise LookupError(name)
        return name, known

    def _known(self, name: str, key: dict[str, Any]) -> Measured | None:
        """Return a measurement that needs no probe."""
        if (known := self._known_by_name.get(name)) is not None:
            return known
        result = self.cache.get(key) if self.cache and "repeat" not in key else None
        return None if result is None else Measured(answer=result)

    def _tasks(self, experiments: Iterable[Experiment | Untestable]) -> Iterator[Task]:
        """Yield the tasks of ``experiments`` whose results are not known."""
        for experiment in experiments:
            if isinstance(experiment, Untestable):
                continue
            for rank in experiment.ranks:
                job = replace(experiment.job, rank=rank)
                name, key = self._key(experiment, job)
                if self._known(name, key) is None:
                    yield self._task(name, experiment, job)

    def _task(self, name: str, experiment: Experiment, job: ProbeJob) -> Task:
        rank = f", rank {job.rank}" if len(experiment.ranks) > 1 else ""
        return Task(name=name, measure=partial(self._slots.measure, experiment, job), label=experiment.label + rank)

    @cached_property
    def _slots(self) -> SlotRunner:
        return SlotRunner(self.runner, self.deadline, self.cards)

    @cached_property
    def _machine(self) -> Machine:
        return self.runner.machine(self.environment)
