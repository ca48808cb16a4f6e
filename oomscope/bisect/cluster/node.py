"""What a job does on its node: one probe, in the environment that the search has, for as long as the search lives.

What crosses is JSON, both ways. The files do not: harness, checkout and Python environment lie where the node sees them
under the same paths.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from oomscope.bisect.cluster import lease
from oomscope.bisect.identity import Machine
from oomscope.errors import MachineUnfitError
from oomscope.probe import launch
from oomscope.probe.job import CheckoutTarget, ProbeJob, Progress
from oomscope.probe.result import Failure, ProbeResult

_OF_THE_JOB = ("SLURM", "SBATCH_", "SRUN_", "SUBMITIT_", "PMI_", "PMIX_")
"""Prefixes of variables that a launcher sets: a target that saw them would take itself for a rank of a larger job."""

LENT = ("CUDA_VISIBLE_DEVICES",)
"""Variables that say what a job was given of its node, which is another from job to job."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a job is told."""

    alive: str
    """The file that shows that the search lives."""
    progress: str
    """The file that progress is appended to, a JSON document a line."""
    job: dict[str, Any] | None = None
    """The probe's job; None only asks what the node is."""

    def to_json(self) -> str:
        """Return the text that crosses."""
        return json.dumps(asdict(self))


def measure(order: str) -> dict[str, Any]:
    """Do what ``order`` (:meth:`Order.to_json`) says; return the ``host``, its ``machine`` and the probe's ``result``.

    SIGTERM, by which a cluster ends a job, ends the process as it ends a probe on a terminal: once all that the probe
    started is gone, and without a result.

    Raises:
        StoppedError: the search does not live any more.
    """
    given = Order(**json.loads(order))
    with _as_submitted():
        variables = {name: value for name, value in os.environ.items() if name not in LENT}
        answer: dict[str, Any] = {"host": socket.gethostname(), "machine": _described(Machine.here(variables))}
        if given.job is not None:
            answer["result"] = _measured(ProbeJob.from_json(given.job), given).to_json()
    return answer


def _measured(job: ProbeJob, given: Order) -> ProbeResult:
    unseen = [path for path in _needed(job) if not Path(path).exists()]
    if unseen:
        where = f"{unseen[0]} is not there on {socket.gethostname()}"
        return _unfit(job, f"{where}: harness and --state must lie on a file system that the nodes share")
    with lease.watched(Path(given.alive)) as ended, _appending(Path(given.progress)) as progress:
        try:
            return launch.run(job, progress, stop=ended)
        except MachineUnfitError as error:
            return _unfit(job, f"{socket.gethostname()}: {error}")


def _needed(job: ProbeJob) -> tuple[str, ...]:
    return (*job.target.outside, job.target.repo) if isinstance(job.target, CheckoutTarget) else ()


def _unfit(job: ProbeJob, message: str) -> ProbeResult:
    failure = Failure(kind="unfit", message=message)
    return ProbeResult(backend="virtual" if job.backend == "auto" else job.backend, outcome="error", failure=failure)


@contextmanager
def _appending(path: Path) -> Iterator[Callable[[Progress], None]]:
    with path.open("a", buffering=1) as lines:
        yield lambda progress: print(json.dumps(progress.to_json()), file=lines)


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


def _described(machine: Machine) -> dict[str, Any]:
    return {"versions": dict(machine.versions), "packages": machine.packages, "gpus": list(machine.gpus)}


def machine_of(described: dict[str, Any]) -> Machine:
    """Return the machine that :func:`measure` described."""
    return Machine(versions=described["versions"], packages=described["packages"], gpus=tuple(described["gpus"]))
