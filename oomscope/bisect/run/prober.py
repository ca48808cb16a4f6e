"""Answers a search's questions: measures or remembers, judges, tells the reporter, and keeps the record.

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
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

from oomscope.bisect.results.predicate import Bad, Judgement
from oomscope.bisect.results.reporter import Reporter, SilentReporter
from oomscope.bisect.results.result import Cost, ProbeRecord, Role
from oomscope.bisect.run.cache import KeptAnswer, Logs, Memory, NoMemory, ResultCache
from oomscope.bisect.run.deadline import Deadline
from oomscope.bisect.run.experiment import Experiment, Untestable
from oomscope.bisect.run.identity import Machine, digest_of, key_of
from oomscope.bisect.run.request import SearchRequest
from oomscope.bisect.run.runner import Here, ProbeFunction, Runner, SlotRunner, heedless, runner_of
from oomscope.bisect.run.scheduler import Executor, Inline, Scheduler, Task, Threads
from oomscope.bisect.run.workplace import CommandError
from oomscope.bisect.search.line import Answer
from oomscope.bisect.search.measured import bytes_of, is_lower_bound
from oomscope.errors import GitError, InconclusiveError, MachineUnfitError, TargetError
from oomscope.probe.job import ProbeJob
from oomscope.probe.ranks import probe_ranks
from oomscope.probe.result import ProbeResult

_ABBREVIATED = 10
_NUMBER = re.compile(r"\d+")

Ahead = Callable[[], Iterable[Experiment | Untestable]]
"""Returns what is likely to be asked next, likeliest first."""
AnswerAndResult = tuple[ProbeRecord, ProbeResult | None]
"""An answer, with the result that it rests on where something was measured."""


def nothing_ahead() -> tuple[Experiment, ...]:
    """Return that nothing is likely to follow."""
    return ()


class Services(TypedDict, total=False):
    """What a search works with; each has a default."""

    runner: Runner
    """Runs probes; this machine or the request's cluster unless given."""
    probe: ProbeFunction
    """Measures one job in the runner's stead, to its end."""
    executor: Executor
    """Does the work; as many threads as the request has jobs unless given, and this thread for one job."""
    reporter: Reporter
    """Receives every probe as it comes; none unless given."""
    clock: Callable[[], float]
    """Seconds, for the deadline."""
    environment: Mapping[str, str]
    """The variables that probes see; the process's own unless given."""
    memory: Memory
    """What an earlier life of the search was answered; searches that keep a journal give their own."""


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
    """Measures experiments, each once, and judges them.

    Args:
        runner: runs probes.
        bad: what counts as bad.
        reporter: told of every question and answer.
        cache: results of earlier searches; None asks everything anew.
        logs: where the output of probes that failed is kept; None keeps none.
        deadline: when to stop.
        environment: the variables that probes will see.
        scheduler: does the work; in the calling thread unless given.
        cards: what probes on GPUs get one each of; unless given, they take what they see.
        memory: what an earlier life of the search was answered; told of every answer.

    As a context manager it ends all that still runs.
    """

    runner: Runner
    bad: Bad
    reporter: Reporter
    cache: ResultCache | None = None
    logs: Logs | None = None
    deadline: Deadline = field(default_factory=lambda: Deadline(None))
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    records: list[ProbeRecord] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    scheduler: Scheduler = field(default_factory=lambda: Scheduler(Inline()))
    cards: tuple[str, ...] = ()
    memory: Memory = field(default_factory=NoMemory)
    _ahead: Ahead = nothing_ahead
    _asked: Counter[str] = field(default_factory=Counter)
    """How often each content was asked about, by its key's name."""
    _results: dict[str, ProbeResult] = field(default_factory=dict)
    """What was measured, by the name of its key."""
    _said_by_probes: set[str] = field(default_factory=set)
    """Notes of probes that are kept, without their numbers."""
    _has_run: bool = False
    """Whether the question that is open has run a probe."""
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self.deadline.clock()

    @classmethod
    def of(cls, request: SearchRequest, **services: Unpack[Services]) -> Prober:
        """Return the prober that ``request`` asks for; its deadline runs from now."""
        deadline = Deadline.after(request.deadline_s, services.get("clock", time.monotonic))
        stand_in = Here(run=heedless(services["probe"])) if "probe" in services else None
        runner = stand_in or services.get("runner") or runner_of(request.cluster, request.places, deadline)
        environment = services.get("environment", os.environ)
        reporter = services.get("reporter", SilentReporter())
        executor = services.get("executor") or (Threads(request.jobs) if request.jobs > 1 else Inline())
        prober = cls(
            runner=runner,
            bad=request.bad,
            reporter=reporter,
            deadline=deadline,
            environment=environment,
            memory=services.get("memory", NoMemory()),
            scheduler=Scheduler(executor, reporter.at_work),
            cards=runner.cards(environment) if request.jobs > 1 else (),
        )
        prober.logs = Logs(request.places.logs, prober.note)
        prober.cache = ResultCache(request.places.results, prober.note, is_read=request.use_cache)
        return prober

    def __enter__(self) -> Self:
        """Make ready to run probes."""
        self.runner.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all that still runs."""
        try:
            self.scheduler.close()
        finally:
            self.runner.__exit__(kind, error, trace)

    def foresee(self, ahead: Ahead) -> None:
        """Begin, while the next question is answered, what ``ahead`` names, as far as there are idle slots.

        It changes no answer. ``ahead`` is called whenever a slot is idle, and only as many of its experiments are
        taken as are needed.
        """
        self._ahead = ahead

    def foreseen(self, experiment: Experiment | Untestable) -> Answer | None:
        """Return what the answer to ``experiment`` would be, where that is known already or nothing can be measured."""
        if isinstance(experiment, Untestable):
            return Answer.UNTESTABLE
        try:
            result = probe_ranks(experiment.job, list(experiment.ranks), partial(self._look, experiment))
        except LookupError:
            return None
        return self.bad.judge(result).answer

    def ask(self, question: Question, experiment: Experiment | Untestable) -> AnswerAndResult:
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
        try:
            found = self._measured(experiment)
        finally:
            self._ahead = nothing_ahead
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
            cached=result is not None and not self._has_run,
            wall_s=self.deadline.clock() - started,
            probe_s=result.wall_s if result else 0.0,
            repeat=experiment.repeat if isinstance(experiment, Experiment) else 0,
            log=self._log_of(question, found),
        )
        self.records.append(record)
        if result is not None:
            self._note_of_probe(number, result)
        if isinstance(experiment, Experiment):
            self._asked[self.content_of(experiment)] += 1
        self.reporter.probed(record)
        return record, result

    def times(self, experiment: Experiment) -> int:
        """Return how often what ``experiment`` measures was asked about, of whichever commit that holds it."""
        return self._asked[self.content_of(experiment)]

    def content_of(self, experiment: Experiment) -> str:
        """Return a name of what ``experiment`` measures, whichever measurement of it this is."""
        name, _ = self._key(experiment.repeated(0), experiment.job)
        return name

    def note(self, text: str) -> None:
        """Keep ``text`` for the report, once."""
        if text not in self.notes:
            self.notes.append(text)

    @property
    def cost(self) -> Cost:
        """What the search has taken so far."""
        scheduler = self.scheduler
        return Cost(wall_s=self.deadline.clock() - self._began, slots=scheduler.executor.slots, begun=scheduler.begun)

    def _note_of_probe(self, number: int, result: ProbeResult) -> None:
        """Keep what a probe remarks on its measurement; of notes that differ in numbers alone the first."""
        for text in result.notes:
            kind = _NUMBER.sub("0", text)
            if kind not in self._said_by_probes:
                self._said_by_probes.add(kind)
                self.note(f"{text} (first in probe {number})")

    def _log_of(self, question: Question, found: ProbeResult | Untestable) -> str | None:
        said = found.said if isinstance(found, Untestable) else found.failure.detail if found.failure else ""
        if self.logs is None:
            return None
        return self.logs.keep(said, question.commit[:_ABBREVIATED] if question.commit else "keys")

    # One measurement: known from memory or the cache, begun ahead, or of a probe that runs now.

    def _measured(self, experiment: Experiment | Untestable) -> ProbeResult | Untestable:
        if isinstance(experiment, Untestable):
            return experiment
        self._has_run = False
        try:
            return probe_ranks(experiment.job, list(experiment.ranks), partial(self._take, experiment))
        except CommandError as error:
            return Untestable(str(error), error.said)
        except (GitError, TargetError) as error:
            return Untestable(str(error))

    def _take(self, experiment: Experiment, job: ProbeJob) -> ProbeResult:
        """Return the result of one rank of ``experiment``.

        Raises:
            CommandError: it cannot be measured.
        """
        name, key = self._key(experiment, job)
        kept = self.memory.recall(key)
        if kept is None:
            known = self._known(name, key)
            kept = self._made(name, key, experiment, job) if known is None else KeptAnswer(answer=known)
        self.memory.learn(key, kept)
        for line in kept.remarks:
            self.note(line)
        if isinstance(kept.answer, Untestable):
            raise CommandError(kept.answer.reason, where="", said=kept.answer.said)
        self._results[name] = kept.answer
        return kept.answer

    def _look(self, experiment: Experiment, job: ProbeJob) -> ProbeResult:
        """Return the result of one rank that is there already.

        Raises:
            LookupError: there is none.
        """
        name, key = self._key(experiment, job)
        if (known := self._known(name, key)) is not None:
            return known
        if (measured := self.scheduler.look(name)) is not None:
            return measured.result
        raise LookupError(name)

    def _made(self, name: str, key: dict[str, Any], experiment: Experiment, job: ProbeJob) -> KeptAnswer:
        """Return what comes of a probe that is made now."""
        self._has_run = True
        try:
            measured = self.scheduler.take(
                self._task(name, experiment, job), self._tasks_ahead, self.reporter.progressed
            )
        except (GitError, TargetError) as error:
            return KeptAnswer(answer=Untestable(str(error), error.said if isinstance(error, CommandError) else ""))
        result = _answering(measured.result)
        # What lacks today (a submodule, a large file) may be there tomorrow.
        if self.cache and not measured.missing and not experiment.repeat:
            self.cache.put(key, result)
        return KeptAnswer(answer=result, remarks=measured.missing)

    def _key(self, experiment: Experiment, job: ProbeJob) -> tuple[str, dict[str, Any]]:
        """Return what the result of one rank is kept under, and its name."""
        key = key_of(job, experiment.content, self._machine, self.environment)
        if experiment.repeat:
            key["repeat"] = experiment.repeat
        return digest_of(key), key

    def _known(self, name: str, key: dict[str, Any]) -> ProbeResult | None:
        """Return a result that needs no probe."""
        if (known := self._results.get(name)) is not None:
            return known
        if (kept := self.memory.recall(key)) is not None and not isinstance(kept.answer, Untestable):
            return kept.answer
        return self.cache.get(key) if self.cache and "repeat" not in key else None

    def _tasks_ahead(self) -> Iterator[Task]:
        """Yield what is foreseen and not known."""
        for experiment in self._ahead():
            if isinstance(experiment, Untestable):
                continue
            for rank in experiment.ranks:
                job = replace(experiment.job, rank=rank)
                name, key = self._key(experiment, job)
                if self._known(name, key) is None:
                    yield self._task(name, experiment, job)

    def _task(self, name: str, experiment: Experiment, job: ProbeJob) -> Task:
        rank = f", rank {job.rank}" if len(experiment.ranks) > 1 else ""
        return Task(name=name, begin=self._slots.begin(experiment, job), label=experiment.label + rank)

    @cached_property
    def _slots(self) -> SlotRunner:
        return SlotRunner(self.runner, self.deadline, self.cards)

    @cached_property
    def _machine(self) -> Machine:
        return self.runner.machine(self.environment)


def _answering(result: ProbeResult) -> ProbeResult:
    """Return ``result`` if it says something about the target.

    Raises:
        MachineUnfitError: this machine cannot probe at all.
        InconclusiveError: the harness cannot be one.
    """
    if result.failure is not None and result.failure.kind == "unfit":
        raise MachineUnfitError(result.failure.message)
    if result.failure is not None and result.failure.kind == "usage":
        raise InconclusiveError(result.failure.message, remedy="then search again: what was measured is kept")
    return result
