"""Runs probes as jobs of a cluster. What the cluster does to a job is never an answer about the code under test.

A job that ends without a result (its node was lost, it was preempted, cancelled by somebody, or took longer than it
may) makes its probe ``lost``, which is worth another try, with the files laid out anew. Whoever stops waiting for a
job, for whatever reason, cancels it: what squeue once does not list may yet run.
"""

from __future__ import annotations

import itertools
import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from oomscope.bisect.cluster import lease
from oomscope.bisect.cluster.node import LENT, Order, machine_of
from oomscope.bisect.cluster.scheduler import Scheduler
from oomscope.bisect.cluster.settings import ClusterSettings
from oomscope.bisect.deadline import OutOfTimeError
from oomscope.bisect.identity import Machine
from oomscope.errors import MachineUnfitError
from oomscope.probe.card import check_environment
from oomscope.probe.environment import environment_of, own_environment
from oomscope.probe.fingerprint import fingerprint
from oomscope.probe.job import ProbeJob, Progress
from oomscope.probe.launch import StoppedError
from oomscope.probe.result import Failure, ProbeResult
from oomscope.probe.rooms import room

if TYPE_CHECKING:
    from submitit import Job

_LOOK_S = 0.25
_CANCEL_S = 15.0
"""How long a cancelled job is waited for: its node may still write into the checkout."""
_START_MIN = 3
"""Minutes that a job may run beside its probe: to start Python, and to read torch from a network file system."""
_DETAIL = 4000
"""Characters of a lost job's log that are kept."""


class LostJobError(Exception):
    """A job ended without a result.

    Args:
        text: which, and how.
        detail: the end of its log.
    """

    def __init__(self, text: str, detail: str) -> None:
        super().__init__(text)
        self.text = text
        self.detail = detail


@dataclass
class ClusterRunner:
    """Runs each probe as a job. Threads may share it. Within its context there is a place for jobs.

    Args:
        settings: where jobs go.
        directory: for orders and results; the nodes see it under the same path.
        left_s: seconds until nobody wants results any more, time in the queue included.
        retries: how often it is worth trying again what was lost.
        grace_s: how long a result may take to come into sight after its job has ended, on a slow file system.

    Raises:
        UsageError, MachineUnfitError: no jobs can be submitted here; on entering the context.
    """

    settings: ClusterSettings
    directory: Path
    left_s: Callable[[], float] = lambda: math.inf
    retries: int = 2
    grace_s: float = 15.0
    reuses_places: bool = field(default=False, init=False)
    """A network file system may show a node for a minute what stood at a path before."""
    _stack: ExitStack = field(default_factory=ExitStack)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _machine: Machine | None = None

    def __enter__(self) -> Self:
        """Make the place for jobs."""
        with ExitStack() as stack:
            self._folder = stack.enter_context(room(self.directory.absolute(), "jobs"))
            self._scheduler = Scheduler(self.settings, self._folder / "submitit")
            stack.enter_context(lease.kept(self._folder / "alive"))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove it."""
        self._stack.__exit__(kind, error, trace)

    def cards(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        """Return none: the cluster gives each job its own."""
        return ()

    def machine(self, environment: Mapping[str, str]) -> Machine:
        """Return what the nodes are, which a first job tells.

        Raises:
            MachineUnfitError: it tells nothing, or the nodes see other variables than ``environment`` has.
        """
        theirs = self._machine = self._machine or self._described()
        ours = _variables(fingerprint({name: value for name, value in environment.items() if name not in LENT}))
        seen = _variables(theirs.versions)
        for name in sorted(seen.keys() | ours.keys()):
            if seen.get(name) != ours.get(name):
                raise MachineUnfitError(
                    f"a job sees {name} as {seen.get(name, '')!r}, and this process as {ours.get(name, '')!r}",
                    remedy="let sbatch export the environment, and let no prolog change that variable",
                )
        return theirs

    def run(
        self,
        job: ProbeJob,
        progress: Callable[[Progress], None] | None = None,
        /,
        *,
        stop: threading.Event | None = None,
    ) -> ProbeResult:
        """Measure ``job`` on a node and return what came of it.

        Raises:
            StoppedError: ``stop`` was set.
            OutOfTimeError: nobody wants the result any more.
            MachineUnfitError: no jobs can be run, or the nodes are not alike.
            ConfigError, AllocatorConfError: a variable of the environment is ill-formed.
        """
        check_environment(job, environment_of(job, own_environment()))
        minutes = math.ceil(job.timeout_s / 60) + _START_MIN
        try:
            answer = self._answered(job, minutes, progress, stop)
        except LostJobError as lost:
            return ProbeResult(
                backend="virtual" if job.backend == "auto" else job.backend,
                outcome="error",
                rank=job.rank,
                world_size=job.world_size,
                failure=Failure(kind="lost", message=f"job {lost.text}", detail=lost.detail),
            )
        self._refuse_unlike(answer, job)
        return ProbeResult.from_json(answer["result"])

    def _described(self) -> Machine:
        for _ in range(1 + self.retries):
            try:
                return machine_of(self._answered(None, _START_MIN, None, None)["machine"])
            except LostJobError as lost:
                last = lost
        raise MachineUnfitError(
            f"no job comes back; the last, {last.text}",
            remedy="let --state, and the Python environment of oomscope, lie on a file system that the nodes share",
        )

    def _refuse_unlike(self, answer: dict[str, Any], job: ProbeJob) -> None:
        """Refuse an answer from a node that is not like the first one: two probes could not be compared."""
        there = machine_of(answer["machine"])
        if self._machine is None:
            self._machine = there
        known = self._machine
        if job.backend == "virtual":
            there, known = replace(there, gpus=()), replace(known, gpus=())
        if there != known:
            raise MachineUnfitError(
                f"{answer['host']} differs from the node of the first job: {_difference(there, known)}",
                remedy="choose nodes that are alike, such as with --slurm constraint=NAME",
            )

    def _answered(
        self,
        job: ProbeJob | None,
        minutes: int,
        progress: Callable[[Progress], None] | None,
        stop: threading.Event | None,
    ) -> dict[str, Any]:
        """Return what a job for ``job`` answers (None: what the node is); it is gone when this returns or raises."""
        said = self._folder / f"progress-{next(self._numbers)}"
        order = Order(alive=str(self._folder / "alive"), progress=str(said), job=None if job is None else job.to_json())
        submitted = self._scheduler.submit(order, minutes)
        try:
            self._await(submitted, _Told(said, progress), stop)
            return _result_of(submitted)
        except BaseException:
            _cancel(submitted)
            raise

    def _await(self, submitted: Job[dict[str, Any]], told: _Told, stop: threading.Event | None) -> None:
        """Wait until the result of ``submitted`` is there.

        Raises:
            LostJobError: the job has ended, and there is none.
        """
        stop = stop or threading.Event()
        ended: float | None = None
        told.queued()
        while not submitted.paths.result_pickle.exists():
            if self.left_s() <= 0:
                raise OutOfTimeError
            if submitted.done():
                ended = ended or time.monotonic()
                if time.monotonic() - ended > self.grace_s:
                    how = f"{submitted.job_id} ended without a result ({submitted.state})"
                    raise LostJobError(how, _log(submitted))
            told.look()
            if stop.wait(_LOOK_S):
                raise StoppedError


class _Told:
    """Passes on what a job appends to its file of progress.

    Args:
        path: the file.
        progress: told.
    """

    def __init__(self, path: Path, progress: Callable[[Progress], None] | None) -> None:
        self._path = path
        self._progress = progress or (lambda _progress: None)
        self._read = 0

    def queued(self) -> None:
        """Say that the job was submitted."""
        self._progress(Progress(stage="queue"))

    def look(self) -> None:
        """Pass on the lines that have come."""
        if not self._path.exists():
            return
        lines = self._path.read_text().split("\n")[:-1]
        for line in lines[self._read :]:
            self._progress(Progress(**json.loads(line)))
        self._read = len(lines)


def _difference(there: Machine, known: Machine) -> str:
    """Return what tells two machines apart, in a few words."""
    if there.gpus != known.gpus:
        return "other cards, or another driver"
    names = sorted(there.versions.keys() | known.versions.keys())
    other = [name for name in names if there.versions.get(name) != known.versions.get(name)]
    return f"other {', '.join(other)}" if other else "other packages are installed"


def _variables(versions: Mapping[str, str]) -> dict[str, str]:
    """Return the measured variables of a fingerprint, by their names."""
    return {name.removeprefix("env."): value for name, value in versions.items() if name.startswith("env.")}


def _result_of(submitted: Job[dict[str, Any]]) -> dict[str, Any]:
    from submitit.core.utils import FailedJobError

    try:
        return submitted.result()
    except FailedJobError as error:
        lines = [line for line in str(error).splitlines() if "Error" in line]
        raise MachineUnfitError(
            f"job {submitted.job_id} could not run the probe: {lines[-1].strip() if lines else error}",
            remedy="let the nodes see the Python environment that oomscope runs in",
        ) from error


def _cancel(submitted: Job[dict[str, Any]]) -> None:
    """Cancel a job and wait, not for ever, until it has ended."""
    submitted.cancel(check=False)
    until = time.monotonic() + _CANCEL_S
    while not submitted.done(force_check=True) and time.monotonic() < until:
        time.sleep(_LOOK_S)


def _log(submitted: Job[dict[str, Any]]) -> str:
    try:
        return (submitted.stderr() or "")[-_DETAIL:]
    except OSError:
        return ""
