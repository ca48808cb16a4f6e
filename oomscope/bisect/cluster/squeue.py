"""Jobs of Slurm whose states are those of squeue.

submitit asks sacct, which knows nothing where a cluster keeps no accounts, and asks it once more for each job. squeue
always knows, also of jobs that ended some minutes ago (``MinJobAge`` of slurm.conf), and one call tells of all.
"""

from __future__ import annotations

import getpass
import subprocess
import threading
import time
from typing import Any

from submitit.slurm.slurm import SlurmExecutor, SlurmInfoWatcher, SlurmJob

from oomscope.probe.environment import own_environment

GONE = "GONE"
"""The state of a job that squeue does not know any more: it ended some time ago."""
ENDED = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
        *("REVOKED", "TIMEOUT", GONE),
    }
)
"""The states of squeue(1) that a job does not leave; one that may be queued again is never submitted here."""
_ANSWER_S = 60
_POLL_S = 10
"""The longest time between two calls while jobs are waited for; submitit begins with 2 s."""


class QueueWatcher(SlurmInfoWatcher):
    """The states of all jobs of this process, which threads may ask for at once."""

    def __init__(self, delay_s: int = _POLL_S) -> None:
        super().__init__(delay_s)
        self._lock = threading.RLock()

    def update_if_long_enough(self, mode: str) -> None:
        """Ask again if that is due."""
        with self._lock:
            super().update_if_long_enough(mode)

    def is_done(self, job_id: str, mode: str = "standard") -> bool:
        """Return whether the job has ended."""
        return self.get_state(job_id, mode=mode) in ENDED

    def update(self) -> None:
        """Ask for the states of all jobs; where squeue fails, they stay what they were."""
        states = states_of(getpass.getuser())
        self._num_calls += 1
        self._last_status_check = time.time()
        if states is None:
            return
        self._info_dict |= {name: {"State": states.get(name, GONE)} for name in self._registered - self._finished}
        self._finished |= {name for name in self._registered if self.is_done(name, mode="cache")}


def states_of(user: str) -> dict[str, str] | None:
    """Return the state of each job of ``user`` by its number; None where squeue does not answer."""
    command = ["squeue", f"--user={user}", "--states=all", "--noheader", "--format=%i %T"]
    try:
        listed = _said(command)
    except (OSError, subprocess.SubprocessError):
        return None
    rows = (row.split() for row in listed.splitlines())
    return {row[0]: row[1] for row in rows if len(row) == 2}


def _said(command: list[str]) -> str:
    environment = own_environment()
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_ANSWER_S, env=environment)
    return done.stdout


class QueuedJob(SlurmJob[Any]):
    """A job whose state comes from squeue."""

    watcher = QueueWatcher()

    def cancel(self, check: bool = True) -> None:
        """Have it ended, in the queue or on its node; with ``check`` raise where Slurm refuses."""
        try:
            _said(["scancel", self.job_id])
        except (OSError, subprocess.SubprocessError):
            if check:
                raise


class QueuedExecutor(SlurmExecutor):
    """Submits such jobs."""

    job_class = QueuedJob
