"""Runs one probe: on this machine or as a cluster's job, in a slot with a checkout and a card of its own."""

from __future__ import annotations

import itertools
import json
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from oomscope.bisect.run.deadline import Deadline, OutOfTimeError
from oomscope.bisect.run.experiment import Experiment
from oomscope.bisect.run.identity import Machine
from oomscope.bisect.run.places import Places
from oomscope.bisect.run.scheduler import Action, Measured
from oomscope.bisect.run.slurm import ClusterRunner, ClusterSettings
from oomscope.bisect.run.workplace import Workplace
from oomscope.probe.job import CheckoutTarget, ProbeJob, Progress
from oomscope.probe.machine.environment import child_environment, environment_of, own_environment
from oomscope.probe.process import warm
from oomscope.probe.process.launch import StoppedError
from oomscope.probe.process.tempdirs import remove_tree
from oomscope.probe.result import ProbeResult

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_DEVICES = Path("/dev")


class ProbeFunction(Protocol):
    """Measures a job."""

    def __call__(self, job: ProbeJob, progress: Callable[[Progress], None] | None = None, /) -> ProbeResult:
        """Return what came of ``job``; never raises for what the target does."""
        ...


class StoppableProbe(Protocol):
    """Measures a job until its result is not needed any more; :func:`oomscope.probe.process.warm.run` does."""

    def __call__(
        self,
        job: ProbeJob,
        progress: Callable[[Progress], None] | None = None,
        /,
        *,
        stop: threading.Event | None = None,
    ) -> ProbeResult:
        """Return what came of ``job``; never raises for what the target does.

        Raises:
            StoppedError: ``stop`` was set, from another thread.
        """
        ...


class Runner(AbstractContextManager["Runner"], Protocol):
    """Runs probes, within its context."""

    @property
    def reuses_places(self) -> bool:
        """Whether one checkout after the other may be laid out at the same place."""
        ...

    @property
    def retries(self) -> int:
        """How often it is worth trying again what was ``lost``."""
        ...

    @property
    def run(self) -> StoppableProbe:
        """Measures one job."""
        ...

    def machine(self, environment: Mapping[str, str]) -> Machine:
        """Return what the machine is that probes run on, under ``environment``.

        Raises:
            MachineUnfitError: it cannot be told, or cannot probe.
            OutOfTimeError: the deadline passed.
        """
        ...

    def cards(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        """Return the cards that probes side by side have to be lent one each; none where they get their own."""
        ...


@dataclass
class Here:
    """Runs probes on this machine.

    Args:
        run: measures one job.
    """

    run: StoppableProbe = warm.run
    reuses_places: bool = field(default=True, init=False)
    retries: int = field(default=0, init=False)

    def __enter__(self) -> Self:
        """Return this."""
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Do nothing: a probe leaves nothing behind."""

    def machine(self, environment: Mapping[str, str]) -> Machine:
        """Return this machine."""
        return Machine.here(environment)

    def cards(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        """Return those that ``environment`` lets a process see."""
        return visible_cards(environment)


def heedless(probe: ProbeFunction) -> StoppableProbe:
    """Return ``probe``, which runs to its end even when the result is not needed any more."""

    def run(
        job: ProbeJob,
        progress: Callable[[Progress], None] | None = None,
        /,
        *,
        stop: threading.Event | None = None,
    ) -> ProbeResult:
        return probe(job, progress)

    return run


def runner_of(cluster: ClusterSettings | None, places: Places, deadline: Deadline) -> Runner:
    """Return what runs probes on ``cluster``, None being this machine."""
    if cluster is None:
        return Here()
    return ClusterRunner(cluster, places.jobs, lambda: deadline.left_s)


class SlotRunner:
    """Runs one probe in a slot: lays out a checkout there, gets it ready, lends it a card. Threads may share it.

    Args:
        runner: runs probes.
        deadline: when the search ends.
        cards: what probes on GPUs get one each of.
    """

    def __init__(self, runner: Runner, deadline: Deadline, cards: tuple[str, ...] = ()) -> None:
        self.runner, self.deadline = runner, deadline
        self._cards = Cards(cards)
        self._numbers = itertools.count()

    def begin(self, experiment: Experiment, job: ProbeJob) -> Callable[[int], Action]:
        """Return what, given the number of a slot, returns the measurement of one rank of ``experiment`` there.

        What was lost is tried again, with the files laid out anew: who lost them may have written there.
        The measurement raises GitError or TargetError where the files cannot be laid out or made ready, OutOfTimeError
        after the deadline, and StoppedError once the result is not needed.
        """

        def begin(slot: int) -> Action:
            def action(progressed: Callable[[Progress], None], stop: threading.Event) -> Measured:
                for left in reversed(range(1 + self.runner.retries)):
                    with self._placed(job, slot) as placed:
                        measured = self._measure(experiment, placed, progressed, stop)
                    if not left or not _is_lost(measured.result):
                        break
                return _with_tries(measured, 1 + self.runner.retries)

            return action

        return begin

    @contextmanager
    def _placed(self, job: ProbeJob, slot: int) -> Iterator[ProbeJob]:
        """Yield ``job`` with the checkout of ``slot``, whose first one is that of the job.

        Where places are reused one checkout is laid out after the other at the place of a slot, which is quick: only
        what differs is written. Else every probe has a new one, which is removed after it.
        """
        target = job.target
        if not isinstance(target, CheckoutTarget) or (self.runner.reuses_places and slot == 0):
            yield job
            return
        place = f"{target.repo}-{slot + 1}"
        if self.runner.reuses_places:
            yield replace(job, target=target.at(place))
            return
        place = f"{place}-{next(self._numbers)}"
        try:
            yield replace(job, target=target.at(place))
        finally:
            remove_tree(Path(place))

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
        with self._cards.lent(job) as alone:
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


def visible_cards(environment: Mapping[str, str], devices: Path = _DEVICES) -> tuple[str, ...]:
    """Return the NVIDIA cards that ``environment`` lets a process see, as ``CUDA_VISIBLE_DEVICES`` names them.

    Without that variable all of the machine's, which the driver lists under ``devices`` (``nvidia0``, ``nvidia1``, …).
    An index of -1 hides all that come after it (CUDA C++ Programming Guide, environment variables).
    """
    if (chosen := environment.get(_VISIBLE)) is not None:
        names = [name.strip() for name in chosen.split(",") if name.strip()]
        return tuple(names[: names.index("-1")] if "-1" in names else names)
    return tuple(map(str, range(len(list(devices.glob("nvidia[0-9]*"))))))


class Cards:
    """Cards to lend to probes that run side by side, each to one at a time.

    Args:
        names: as ``CUDA_VISIBLE_DEVICES`` names them; without any, jobs are left as they are.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._are_lent = bool(names)
        self._free = queue.SimpleQueue[str]()
        for name in names:
            self._free.put(name)

    @contextmanager
    def lent(self, job: ProbeJob) -> Iterator[ProbeJob]:
        """Yield ``job`` with a card for itself, waiting for one; a job on a virtual card needs none.

        A job that chooses its card itself keeps its choice.
        """
        if not self._are_lent or job.backend == "virtual" or _VISIBLE in environment_of(job, {}):
            yield job
            return
        card = self._free.get()
        try:
            yield replace(job, environment={**job.environment, _VISIBLE: card})
        finally:
            self._free.put(card)
