"""Runs probes as jobs through submitit: one job a probe, cancelled once its result is not needed.

What the cluster does to a job says nothing about the code under test. A job that ends without a result (its node was
lost, it was preempted or took too long) makes its probe ``lost``, which is tried again. Harness, checkouts and the
Python environment must lie where the nodes see them under the same paths.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from oomscope.bisect.run.experiment import OutOfTimeError
from oomscope.bisect.run.identity import Machine
from oomscope.errors import MachineUnfitError, UsageError
from oomscope.printable import quoted
from oomscope.probe.job import CheckoutTarget, CommandTarget, OnProgress, ProbeJob, Progress, RunsOn
from oomscope.probe.machine.checks import check_environment
from oomscope.probe.machine.environment import ON_LOAN, VISIBLE_CARDS, environment_of, own_environment
from oomscope.probe.process import launch
from oomscope.probe.process.launch import StoppedError
from oomscope.probe.process.tempdirs import tempdir
from oomscope.probe.result import Failure, ProbeResult, without_measurement

if TYPE_CHECKING:
    from submitit import Executor, Job

_NAME = re.compile(r"[a-z][a-z0-9-]*")
OURS = frozenset(
    {
        *("array", "chdir", "error", "export", "job-name", "nodes", "no-requeue", "ntasks", "ntasks-per-node"),
        *("open-mode", "output", "parsable", "requeue", "signal", "test-only", "wait", "wrap"),
    }
)
"""Options of sbatch that say how a job is run and how its result comes back, which this module decides."""
_OF_THE_JOB = ("SLURM", "SBATCH_", "SRUN_", "SUBMITIT_", "PMI_", "PMIX_")
"""Prefixes of variables that a launcher sets: a target that saw them would take itself for a rank of a larger job."""
_LOOK_S = 0.25
_CANCEL_S = 15.0
"""Seconds to wait for a cancelled job: its node may still write into the checkout."""
_START_MIN = 3
"""Minutes that a job may run beside its probe: to start Python, and to read torch from a network file system."""
_DETAIL = 4000
"""Characters of a lost job's log that are kept."""


SbatchOptions: TypeAlias = Mapping[str, str | bool]
"""Long options of sbatch without their dashes (``partition``, ``gpus-per-node``); True for one without a value."""


@dataclass
class ClusterRunner:
    """Runs each probe as a job. Threads may share it. Within its context there is a folder for jobs.

    Args:
        options: of sbatch, for every job.
        directory: for jobs and their results; the nodes see it under the same path.
        left_s: seconds until the search ends, time in the queue included.
        retries: how often to try again what was lost.
        grace_s: how long a result may take to appear after its job has ended, on a slow file system.

    Raises:
        UsageError, MachineUnfitError: no jobs can be submitted here; on entering the context.
    """

    options: SbatchOptions
    directory: Path
    left_s: Callable[[], float] = lambda: math.inf
    retries: int = 2
    grace_s: float = 15.0
    reuses_places: bool = field(default=False, init=False)
    """False: a network file system may show a node for a minute what stood at a path before."""
    _stack: ExitStack = field(default_factory=ExitStack)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> Self:
        """Make the folder for jobs."""
        with ExitStack() as stack:
            folder = stack.enter_context(tempdir(self.directory.absolute(), "jobs"))
            self._executor = _executor(folder)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        """Remove it."""
        self._stack.__exit__(*error)

    def cards(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        """Return none: the cluster gives each job its own."""
        return ()

    def machine(self, environment: Mapping[str, str]) -> Machine:
        """Return this machine's versions and packages, which the nodes share, with the options that choose nodes."""
        variables = {name: value for name, value in environment.items() if name != VISIBLE_CARDS}  # the cluster sets it
        options = ",".join(f"{name}={value}" for name, value in sorted(self.options.items()))
        return replace(Machine.here(variables), gpus=(f"slurm {options}",))

    def run(
        self, job: ProbeJob, progress: OnProgress | None = None, /, *, stop: threading.Event | None = None
    ) -> ProbeResult:
        """Measure ``job`` on a node and return the result; the cluster's job is gone when this returns or raises.

        Raises:
            StoppedError: ``stop`` was set.
            OutOfTimeError: the deadline passed.
            MachineUnfitError: no jobs can be run.
            ConfigError, AllocatorConfError: a variable of the environment is ill-formed.
        """
        check_environment(job, environment_of(job, own_environment()))
        submitted = self._submit(job)
        try:
            if progress is not None:
                progress(Progress(stage="queue"))
            if self._wait_for_result(submitted, stop or threading.Event()):
                return ProbeResult.from_json(_result_of(submitted))
        except BaseException:
            _cancel(submitted)
            raise
        _cancel(submitted)  # what Slurm does not list may yet run
        log = ""
        with contextlib.suppress(OSError):
            log = (submitted.stderr() or "")[-_DETAIL:]
        what = f"job {submitted.job_id} ended without a result ({submitted.state})"
        return _failed(job, Failure(kind="lost", message=what, detail=log))

    def _submit(self, job: ProbeJob) -> Job[dict[str, Any]]:
        """Submit ``job``, which may run a little longer than its probe unless the settings have a ``time``."""
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        minutes = math.ceil(job.timeout_s / 60) + _START_MIN
        # A job that Slurm queues again by itself would run more often than it is counted here.
        # submitit would have it warned by SIGUSR2, which ends a Python that has no handler yet; SIGCONT does nothing.
        ours = {"job_name": "oomscope", "no-requeue": True, "ntasks": 1, "signal": "CONT@1", "time": str(minutes)}
        with self._lock, ON_LOAN:  # sbatch hands this process's variables on
            self._executor.update_parameters(additional_parameters={**ours, **self.options})
            try:
                return self._executor.submit(measure, json.dumps(job.to_json()))
            except (FailedJobError, FailedSubmissionError, OSError) as error:
                lines = [line.strip() for line in str(error).splitlines() if line.strip()]
                message = f"Slurm refuses the job: {lines[-1] if lines else type(error).__name__}"
                raise MachineUnfitError(message, remedy="see --slurm and man sbatch") from error

    def _wait_for_result(self, submitted: Job[dict[str, Any]], stop: threading.Event) -> bool:
        """Wait until the result of ``submitted`` is there, and return whether it is; False once the job has ended."""
        ended: float | None = None
        while not submitted.paths.result_pickle.exists():
            if self.left_s() <= 0:
                raise OutOfTimeError
            if submitted.done():
                ended = ended or time.monotonic()
                if time.monotonic() - ended > self.grace_s:
                    return False
            if stop.wait(_LOOK_S):
                raise StoppedError
        return True


def measure(order: str) -> dict[str, Any]:
    """Measure the job that ``order`` is the JSON of, on its node, and return the result as JSON values.

    SIGTERM, by which a cluster ends a job, ends the process once all that the probe started is gone.
    """
    job = ProbeJob.from_json(json.loads(order))
    needed = (*job.target.outside, job.target.repo) if isinstance(job.target, CheckoutTarget) else ()
    if unseen := [path for path in needed if not Path(path).exists()]:
        where = f"{unseen[0]} is not there on {socket.gethostname()}"
        what = f"{where}: harness and --state must lie on a file system that the nodes share"
        return _failed(job, Failure(kind="unfit", message=what)).to_json()
    with _as_submitted():
        try:
            return launch.run(job).to_json()
        except MachineUnfitError as error:
            return _failed(job, Failure(kind="unfit", message=f"{socket.gethostname()}: {error}")).to_json()


@contextmanager
def _as_submitted() -> Iterator[None]:
    """Take the launcher's variables and its handlers of signals away for the time of the block."""
    taken = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(_OF_THE_JOB)}
    # submitit answers SIGTERM with a line in its log, and SIGUSR2 by queueing the job again behind the search's back.
    handlers = {
        number: signal.signal(number, handler)
        for number, handler in ((signal.SIGTERM, signal.SIG_DFL), (signal.SIGUSR2, signal.SIG_IGN))
    }
    try:
        yield
    finally:
        os.environ.update(taken)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _failed(job: ProbeJob, failure: Failure) -> ProbeResult:
    backend: RunsOn = "virtual" if job.backend == "auto" else job.backend
    return without_measurement(job, "command" if isinstance(job.target, CommandTarget) else backend, failure)


def sbatch_options(words: Iterable[str]) -> SbatchOptions:
    """Return the options that ``words`` ask for, ``NAME=VALUE`` or ``NAME`` each.

    Raises:
        UsageError: a word is not an option of sbatch, or one that this module decides.
    """
    return dict(map(_option, words))


def _option(word: str) -> tuple[str, str | bool]:
    name, equals, value = word.partition("=")
    name = name.strip().removeprefix("--").replace("_", "-")
    if not _NAME.fullmatch(name) or any(ord(letter) < 32 for letter in value):
        raise UsageError(
            f"{quoted(word)} is not an option of sbatch",
            where="--slurm",
            remedy="write NAME=VALUE, such as partition=gpu",
        )
    if name in OURS:
        raise UsageError(f"{name} cannot be chosen", where="--slurm", remedy="leave it out: each probe is one task")
    return name, value if equals else True


def _executor(folder: Path) -> Executor:
    try:
        import submitit
    except ImportError:
        raise UsageError(
            "submitit is not installed", where="--executor slurm", remedy="pip install 'oomscope[slurm]'"
        ) from None
    try:
        return submitit.SlurmExecutor(folder)
    except RuntimeError as error:
        raise MachineUnfitError(
            "there is no srun here", where="--executor slurm", remedy="start the search where jobs can be submitted"
        ) from error


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
    """Cancel a job and wait, for a bounded time, until it has ended."""
    submitted.cancel(check=False)
    until = time.monotonic() + _CANCEL_S
    while not submitted.done(force_check=True) and time.monotonic() < until:
        time.sleep(_LOOK_S)
