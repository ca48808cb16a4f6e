"""Where a search has its probes run: on this machine, or elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from oomscope.bisect.cards import visible_cards
from oomscope.bisect.deadline import Deadline
from oomscope.bisect.identity import Machine
from oomscope.bisect.places import Places
from oomscope.bisect.slurm import ClusterRunner, ClusterSettings
from oomscope.probe.job import ProbeJob, Progress
from oomscope.probe.process import warm
from oomscope.probe.result import ProbeResult


class Probe(Protocol):
    """Measures a job."""

    def __call__(self, job: ProbeJob, progress: Callable[[Progress], None] | None = None, /) -> ProbeResult:
        """Return what came of ``job``; never raises for what the target does."""
        ...


class StoppableProbe(Protocol):
    """Measures a job for as long as somebody wants the result; :func:`oomscope.probe.process.warm.run` does."""

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
            OutOfTimeError: nobody wants to know any more.
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


def heedless(probe: Probe) -> StoppableProbe:
    """Return ``probe``, which goes on to its end though nobody wants the result any more."""

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
