"""Runs jobs in workers that a warm parent forks, with the meaning of :func:`oomscope.probe.process.launch.run`.

A warm parent (:mod:`oomscope.probe.process.forkserver`) serves one environment. It is started when the first job comes
that it suits, and ends with this process, however that ends. Jobs that it does not suit, and those that come after one
was lost, get a fresh process each.
"""

from __future__ import annotations

import atexit
import os
import resource
import sys
import threading
from dataclasses import replace
from typing import Literal

from oomscope.probe.job import CheckoutTarget, OnProgress, ProbeJob, StartedTarget
from oomscope.probe.machine.backends import backend_of
from oomscope.probe.machine.processes import Family
from oomscope.probe.process import launch
from oomscope.probe.process.forkserver import NEEDS_FRESH
from oomscope.probe.process.parent import OF_THE_JOB, Parent
from oomscope.probe.process.preload import hides_some_of
from oomscope.probe.process.workers import FRESH, Order
from oomscope.probe.result import ProbeResult

LOST = "the warm process that probes are forked from was lost; this one and those after it were run in fresh processes"
MOST_PARENTS = 2
"""Warm parents at once, a few hundred MiB each."""


def suits(job: ProbeJob) -> bool:
    """Whether a warm parent can serve ``job``: on Linux, and on a virtual card.

    CUDA must not be started before a fork, and what a library does with a GPU while being imported is not known. A
    command does its own imports.
    """
    if isinstance(job.target, StartedTarget):
        return False
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return False
    return backend_of(job) == "virtual"


class WarmParents:
    """The warm parents of one process. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parents: dict[object, Parent] = {}
        self._loss: Literal["", "unsaid", "said"] = ""

    def run(
        self,
        job: ProbeJob,
        progress: OnProgress | None = None,
        *,
        log_path: str | os.PathLike[str] | None = None,
        stop: threading.Event | None = None,
    ) -> ProbeResult:
        """Measure ``job`` in a process of its own and return what came of it.

        Arguments, result and errors are those of :func:`oomscope.probe.process.launch.run`. That a warm parent was lost
        is noted on the first result that comes after it.
        """
        if not suits(job):
            return launch.run(job, progress, log_path=log_path, stop=stop)

        def start(order: Order) -> Family:
            return self._start(job, order, stop)

        try:
            result = launch.run(job, progress, log_path=log_path, stop=stop, start=start, void_status=NEEDS_FRESH)
        except launch.VoidError:
            result = launch.run(job, progress, log_path=log_path, stop=stop)
        return self._with_the_loss_said(result)

    @property
    def running(self) -> list[Parent]:
        """The parents that there are, the one that was used last at the end."""
        with self._lock:
            return list(self._parents.values())

    def close(self) -> None:
        """End all parents."""
        with self._lock:
            for parent in self._parents.values():
                parent.close()
            self._parents.clear()

    def _start(self, job: ProbeJob, order: Order, stop: threading.Event | None) -> Family:
        """Have a worker forked; start a fresh one where the parent's imports would be noticed, or there is none."""
        with self._lock:
            if stop is not None and stop.is_set():  # which it may be only since another thread came before
                raise launch.StoppedError
            try:
                parent = None if self._loss else self._parent(order, stop)
                return FRESH(order) if parent is None or _would_notice(parent, job) else parent.fork(order, stop)
            except OSError:
                self._loss = "unsaid"
                return FRESH(order)

    def _parent(self, order: Order, stop: threading.Event | None = None) -> Parent:
        """Return the parent that serves the environment of ``order``; the one that was used first makes room."""
        shared = {name: value for name, value in order.environment.items() if name not in OF_THE_JOB}
        key = (frozenset(shared.items()), *_inherited())
        parent = self._parents.pop(key, None)
        if parent is None:
            while len(self._parents) >= MOST_PARENTS:
                self._parents.pop(next(iter(self._parents))).close()
            parent = Parent(order.environment, stop)
        self._parents[key] = parent
        return parent

    def _with_the_loss_said(self, result: ProbeResult) -> ProbeResult:
        with self._lock:
            if self._loss != "unsaid":
                return result
            self._loss = "said"
        return replace(result, notes=(*result.notes, LOST))


def _would_notice(parent: Parent, job: ProbeJob) -> bool:
    """Whether the target of ``job`` could tell that ``parent`` has imported something."""
    return isinstance(job.target, CheckoutTarget) and hides_some_of(parent.early, job.target.place)


def _inherited() -> tuple[object, ...]:
    """Return what a process takes over from the one that starts it, beside its environment."""
    limits = (name for name in dir(resource) if name.startswith("RLIMIT_"))
    return (
        tuple(resource.getrlimit(getattr(resource, name)) for name in limits),
        frozenset(os.sched_getaffinity(0)),
        os.getpriority(os.PRIO_PROCESS, 0),
    )


_parents = WarmParents()
atexit.register(_parents.close)
run = _parents.run
"""Measures a job as :func:`oomscope.probe.process.launch.run` does, with the warm parents of this process."""
