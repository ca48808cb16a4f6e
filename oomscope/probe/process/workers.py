"""How a worker is started, and what the one who started it can do with it: wait, and end it with all its family.

Here it is started as a fresh process; :mod:`oomscope.probe.process.warm` has another way, with the same meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from oomscope.probe.machine.processes import Family, own_program, start_family

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
    """Every variable that it sees."""


Start = Callable[[Order], Family]
"""Starts a worker."""


@dataclass(frozen=True)
class Fresh:
    """Starts a new interpreter for each worker."""

    command: Sequence[str] = WORKER
    """Given the job's file, the result's file and the number of the progress pipe."""

    def __call__(self, order: Order) -> Family:
        """Start a worker."""
        return start_family(
            [*self.command, str(order.job), str(order.result), str(order.progress)],
            environment=order.environment,
            cwd=order.cwd,
            output=order.output,
            passed=(order.progress,),
        )


FRESH = Fresh()
"""The worker of this oomscope, in a new interpreter of the Python that runs it."""
