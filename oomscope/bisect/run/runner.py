"""Runs one probe: on this machine or as a cluster's job, in a slot with a checkout and a card of its own."""

from __future__ import annotations

import itertools
import json
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from oomscope.bisect.run.experiment import Deadline, Experiment, OutOfTimeError, Workplace
from oomscope.bisect.run.identity import Machine
from oomscope.bisect.run.slurm import ClusterRunner, SbatchOptions
from oomscope.bisect.run.state_dirs import StateDirs
from oomscope.bisect.search.measured import Measured, Untestable
from oomscope.errors import GitError, TargetError
from oomscope.probe.job import CheckoutTarget, OnProgress, ProbeJob
from oomscope.probe.machine.environment import VISIBLE_CARDS, child_environment, environment_of, own_environment
from oomscope.probe.process import warm
from oomscope.probe.process.launch import StoppedError
from oomscope.probe.process.tempdirs import remove_tree
from oomscope.probe.result import ProbeResult

_DEVICES = Path("/dev")


@dataclass
class LocalRunner:
    """Runs probes on this machine."""

    run: Callable[..., ProbeResult] = warm.run
    reuses_places: bool = field(default=True, init=False)
    """Whether one checkout after the other may be laid out at the same place."""
    retries: int = field(default=0, init=False)
    """Times that a lost probe is run again."""

    def __enter__(self) -> Self:
        """Return this."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Do nothing: a probe leaves nothing behind."""

    def machine(self, environment: Mapping[str, str]) -> Machine:
        """Return this machine."""
        return Machine.here(environment)

    def cards(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        """Return the cards that ``environment`` lets a process see."""
        return visible_cards(environment)


Runner = LocalRunner | ClusterRunner


def runner_of(cluster: SbatchOptions | None, state_dirs: StateDirs, deadline: Deadline) -> Runner:
    """Return what runs probes: jobs with the options ``cluster``, or this machine."""
    return LocalRunner() if cluster is None else ClusterRunner(cluster, state_dirs.jobs, lambda: deadline.left_s)


class SlotRunner:
    """Runs one probe in a slot: lays out a checkout there, prepares it, reserves a card. Threads may share it."""

    def __init__(self, runner: Runner, deadline: Deadline, cards: tuple[str, ...] = ()) -> None:
        self.runner, self.deadline = runner, deadline
        self._cards = Cards(cards)
        self._numbers = itertools.count()

    def measure(
        self, experiment: Experiment, job: ProbeJob, slot: int, progressed: OnProgress, stop: threading.Event
    ) -> Measured:
        """Return the measurement of one rank of ``experiment``, made in ``slot``.

        A lost probe is tried again with the files laid out anew: the lost one may still write to the old ones.

        Raises:
            OutOfTimeError: the deadline passed.
            StoppedError: ``stop`` was set, since the result is not needed.
        """
        try:
            for left in reversed(range(1 + self.runner.retries)):
                with self._placed(job, slot) as placed:
                    result, missing = self._measure(experiment, placed, progressed, stop)
                if not left or result.failure is None or result.failure.kind != "lost":
                    break
        except (GitError, TargetError) as error:
            return Measured(answer=Untestable(str(error), getattr(error, "output", "")))
        if result.failure is not None and result.failure.kind == "lost":
            message = f"each of {1 + self.runner.retries} tries was lost; the last, {result.failure.message}"
            result = replace(result, failure=replace(result.failure, message=message))
        return Measured(answer=result, remarks=missing)

    @contextmanager
    def _placed(self, job: ProbeJob, slot: int) -> Iterator[ProbeJob]:
        """Yield ``job`` with the checkout of ``slot``, whose first one is that of the job.

        Where places are reused, only the files that differ are written. Elsewhere each probe has a new checkout.
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
        self, experiment: Experiment, job: ProbeJob, progressed: OnProgress, stop: threading.Event
    ) -> tuple[ProbeResult, tuple[str, ...]]:
        """Lay out the files and run a probe; one that was killed from outside is run once more."""
        place = Path(job.target.repo) if isinstance(job.target, CheckoutTarget) else Path()
        missing = experiment.lay_out(place)
        environment = child_environment(job, own_environment())
        experiment.prepare(Workplace(directory=place, environment=environment, deadline=self.deadline, stop=stop))
        with self._cards.reserved(job) as alone:
            result = self._run(alone, progressed, stop)
            if result.failure is not None and result.failure.kind == "killed":
                result = self._run(alone, progressed, stop)
        return _without_checkout(result, job), missing

    def _run(self, job: ProbeJob, progressed: OnProgress, stop: threading.Event) -> ProbeResult:
        left = self.deadline.left_s
        if stop.is_set():
            raise StoppedError
        if left <= 0:
            raise OutOfTimeError
        result = self.runner.run(replace(job, timeout_s=min(job.timeout_s, left)), progressed, stop=stop)
        timed_out = result.failure is not None and result.failure.kind == "timeout"
        if (timed_out or result.demand_cut) and self.deadline.left_s <= 0:
            raise OutOfTimeError
        return result


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
    if (chosen := environment.get(VISIBLE_CARDS)) is not None:
        names = [name.strip() for name in chosen.split(",") if name.strip()]
        return tuple(names[: names.index("-1")] if "-1" in names else names)
    return tuple(map(str, range(len(list(devices.glob("nvidia[0-9]*"))))))


class Cards:
    """Cards that probes side by side reserve, each for one probe at a time.

    Args:
        names: as ``CUDA_VISIBLE_DEVICES`` names them; without any, jobs are left as they are.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._has_cards = bool(names)
        self._free = queue.SimpleQueue[str]()
        for name in names:
            self._free.put(name)

    @contextmanager
    def reserved(self, job: ProbeJob) -> Iterator[ProbeJob]:
        """Yield ``job`` with a card for itself, waiting for one; a job on a virtual card needs none.

        A job that chooses its card itself keeps its choice.
        """
        if not self._has_cards or job.backend == "virtual" or VISIBLE_CARDS in environment_of(job, {}):
            yield job
            return
        card = self._free.get()
        try:
            yield replace(job, environment={**job.environment, VISIBLE_CARDS: card})
        finally:
            self._free.put(card)
