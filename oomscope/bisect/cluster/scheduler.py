"""Submits jobs through submitit: to Slurm, or as processes of this machine."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oomscope.bisect.cluster.node import Order, measure
from oomscope.bisect.cluster.settings import ClusterSettings
from oomscope.errors import MachineUnfitError, UsageError
from oomscope.probe.environment import ON_LOAN

if TYPE_CHECKING:
    from submitit import Executor, Job


class Scheduler:
    """Where jobs are submitted. Threads may share it.

    Args:
        settings: which, and with what options.
        folder: where orders, results and logs of jobs lie; the nodes see it under the same path.

    Raises:
        UsageError: submitit is not installed.
        MachineUnfitError: there is no Slurm here.
    """

    def __init__(self, settings: ClusterSettings, folder: Path) -> None:
        self._settings = settings
        self._executor = _executor(settings, folder)
        self._lock = threading.Lock()

    def submit(self, order: Order, minutes: int) -> Job[dict[str, Any]]:
        """Submit ``order`` as a job that may run for ``minutes``, unless the settings say for how long.

        Raises:
            MachineUnfitError: the scheduler refuses it.
        """
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        with self._lock, ON_LOAN:  # sbatch hands this process's variables on
            self._executor.update_parameters(**self._parameters(minutes))
            try:
                return self._executor.submit(measure, order.to_json())
            except (FailedJobError, FailedSubmissionError, OSError) as error:
                raise MachineUnfitError(
                    f"Slurm refuses the job: {_last_line(error)}", remedy="see --slurm and man sbatch"
                ) from error

    def _parameters(self, minutes: int) -> dict[str, Any]:
        if self._settings.scheduler == "processes":
            return {"timeout_min": minutes}
        # A job that Slurm queues again by itself would run more often than it is counted here.
        # submitit would have it warned by SIGUSR2, which ends a Python that has no handler yet; SIGCONT does nothing.
        ours = {"job_name": "oomscope", "no-requeue": True, "ntasks": 1, "signal": "CONT@1", "time": str(minutes)}
        return {"additional_parameters": {**ours, **self._settings.options}}


def _executor(settings: ClusterSettings, folder: Path) -> Executor:
    try:
        import submitit
    except ImportError:
        raise UsageError(
            "submitit is not installed", where="--executor slurm", remedy="pip install 'oomscope[slurm]'"
        ) from None
    if settings.scheduler == "processes":
        return submitit.LocalExecutor(folder)
    from oomscope.bisect.cluster.squeue import QueuedExecutor

    try:
        return QueuedExecutor(folder)
    except RuntimeError as error:
        raise MachineUnfitError(
            "there is no srun here", where="--executor slurm", remedy="start the search where jobs can be submitted"
        ) from error


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
