"""How a worker is started, and what the one who started it can do with it: wait, and end it with all its family.

Here it is started as a fresh process; :mod:`oomscope.probe.process.warm` has another way, with the same meaning.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from oomscope.probe.machine.processes import MARK, Ended, await_end, kill_all, own_program

WORKER = own_program("oomscope.probe.process.worker")
"""The child."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a worker is started with."""

    job: Path
    """The file that it reads its job from."""
    result: Path
    """The file that it writes its result to."""
    progress: int
    """Descriptor of the pipe that it writes progress to."""
    output: int
    """Descriptor of the log: its standard output and error."""
    cwd: Path
    environment: Mapping[str, str]
    """Every variable that it sees, the mark among them."""

    @property
    def mark(self) -> str:
        """What tells its processes from all others."""
        return self.environment[MARK]


class Worker(Protocol):
    """A worker that was started and not ended yet."""

    def await_end(self, deadline: float) -> bool:
        """Wait until it has ended and return True; at ``deadline`` (of ``time.monotonic``) return False."""
        ...

    def kill(self) -> Ended:
        """Kill it, its process group and whatever carries its mark; return how it ended. Call it once, last."""
        ...


Start = Callable[[Order], Worker]
"""Starts a worker as the leader of a session of its own."""


@dataclass(frozen=True)
class Fresh:
    """Starts a new interpreter for each worker."""

    command: Sequence[str] = WORKER
    """Given the job's file, the result's file and the number of the progress pipe."""

    def __call__(self, order: Order) -> Worker:
        """Start a worker."""
        process = subprocess.Popen(
            [*self.command, str(order.job), str(order.result), str(order.progress)],
            stdin=subprocess.DEVNULL,
            stdout=order.output,
            stderr=order.output,
            cwd=order.cwd,
            env=order.environment,
            pass_fds=(order.progress,),
            start_new_session=True,
        )
        return _FreshWorker(process, order.mark)


FRESH = Fresh()
"""The worker of this oomscope, in a new interpreter of the Python that runs it."""


@dataclass(frozen=True)
class _FreshWorker:
    process: subprocess.Popen[bytes]
    mark: str

    def await_end(self, deadline: float) -> bool:
        """Wait until it has ended."""
        return await_end(self.process, deadline)

    def kill(self) -> Ended:
        """Kill it and its family."""
        return kill_all(self.process, self.mark)
