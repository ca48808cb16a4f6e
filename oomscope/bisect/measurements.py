"""Each measurement of a search, made once: known from memory or the cache, begun ahead, or of a probe that runs now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from oomscope.bisect.bench import Bench, Errand
from oomscope.bisect.cache import ResultCache
from oomscope.bisect.experiment import Experiment, Untestable
from oomscope.bisect.identity import Machine, digest_of, key_of
from oomscope.bisect.measurer import Measurer
from oomscope.bisect.memory import Kept, Memory
from oomscope.bisect.workplace import CommandError
from oomscope.errors import GitError, InconclusiveError, MachineUnfitError, TargetError
from oomscope.probe.job import ProbeJob, Progress
from oomscope.probe.result import ProbeResult

Ahead = Callable[[], Iterable[Experiment | Untestable]]
"""Returns what is likely to be asked next, likeliest first."""


def nothing_ahead() -> tuple[Experiment, ...]:
    """Return that nothing is likely to follow."""
    return ()


@dataclass
class Measurements:
    """The measurements of one search.

    Args:
        measurer: makes them.
        bench: does the work.
        environment: the variables that probes see.
        memory: what an earlier life of the search was answered; told of every answer.
        cache: results of earlier searches; None asks everything anew.
        progressed: told how far a probe is.
        remark: told, in a line each, what is to be said of a measurement.
    """

    measurer: Measurer
    bench: Bench
    environment: Mapping[str, str]
    memory: Memory
    cache: ResultCache | None
    progressed: Callable[[Progress], None]
    remark: Callable[[str], None]
    has_run: bool = False
    """Whether a probe was run since this was set to False."""
    _results: dict[str, ProbeResult] = field(default_factory=dict)

    def take(self, experiment: Experiment, job: ProbeJob, ahead: Ahead = nothing_ahead) -> ProbeResult:
        """Return the result of one rank of ``experiment``: what is known already, else of a probe.

        Args:
            experiment: what is measured.
            job: that of the rank.
            ahead: what is begun meanwhile, as far as there are idle slots.

        Raises:
            CommandError: it cannot be measured.
            OutOfTimeError: the deadline passed before there was a result.
            MachineUnfitError: this machine cannot probe at all.
            InconclusiveError: the harness cannot be one.
        """
        name, key = self._name(experiment, job)
        kept = self.memory.recall(key)
        if kept is None:
            known = self._known(name, key)
            kept = self._made(name, key, experiment, job, ahead) if known is None else Kept(answer=known)
        self.memory.learn(key, kept)
        for line in kept.remarks:
            self.remark(line)
        if isinstance(kept.answer, Untestable):
            raise CommandError(kept.answer.reason, where="", said=kept.answer.said)
        self._results[name] = kept.answer
        return kept.answer

    def look(self, experiment: Experiment, job: ProbeJob) -> ProbeResult:
        """Return the result of one rank that is there already.

        Raises:
            LookupError: there is none.
        """
        name, key = self._name(experiment, job)
        if (known := self._known(name, key)) is not None:
            return known
        if (measured := self.bench.look(name)) is not None:
            return measured.result
        raise LookupError(name)

    def content_of(self, experiment: Experiment) -> str:
        """Return a name of what ``experiment`` measures, whichever measurement of it this is."""
        name, _ = self._name(experiment.repeated(0), experiment.job)
        return name

    def _made(self, name: str, key: dict[str, Any], experiment: Experiment, job: ProbeJob, ahead: Ahead) -> Kept:
        """Return what comes of a probe that is made now."""
        self.has_run = True
        try:
            measured = self.bench.take(
                self._errand(name, experiment, job), lambda: self._errands(ahead), self.progressed
            )
        except (GitError, TargetError) as error:
            return Kept(answer=Untestable(str(error), error.said if isinstance(error, CommandError) else ""))
        result = _answering(measured.result)
        # What lacks today (a submodule, a large file) may be there tomorrow.
        if self.cache and not measured.missing and not experiment.repeat:
            self.cache.put(key, result)
        return Kept(answer=result, remarks=measured.missing)

    def _name(self, experiment: Experiment, job: ProbeJob) -> tuple[str, dict[str, Any]]:
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

    def _errands(self, ahead: Ahead) -> Iterator[Errand]:
        """Yield what is foreseen and not known."""
        for experiment in ahead():
            if isinstance(experiment, Untestable):
                continue
            for rank in experiment.ranks:
                job = replace(experiment.job, rank=rank)
                name, key = self._name(experiment, job)
                if self._known(name, key) is None:
                    yield self._errand(name, experiment, job)

    def _errand(self, name: str, experiment: Experiment, job: ProbeJob) -> Errand:
        rank = f", rank {job.rank}" if len(experiment.ranks) > 1 else ""
        return Errand(name=name, begin=self.measurer.begin(experiment, job), label=experiment.label + rank)

    @cached_property
    def _machine(self) -> Machine:
        return self.measurer.runner.machine(self.environment)


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
