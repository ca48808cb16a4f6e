"""Runs jobs in workers that a warm parent forks, with the meaning of :func:`oomscope.probe.process.launch.run`.

A warm parent (:mod:`oomscope.probe.process.forkserver`) serves one environment. It is started when the first job comes
that it suits, or ahead of it, and ends with this process, however that ends. Jobs that it does not suit, and those that
come after one was lost, get a fresh process each.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from importlib.machinery import all_suffixes
from pathlib import Path
from typing import Any

from oomscope.capture.singleton import PROBE_MARK
from oomscope.probe.job import CheckoutTarget, OnProgress, ProbeJob, StartedTarget
from oomscope.probe.machine.backends import backend_of
from oomscope.probe.machine.environment import (
    ALLOCATOR_VARIABLES,
    CUBLAS_VARIABLE,
    VISIBLE_CARDS,
    own_environment,
    usual_environment,
)
from oomscope.probe.machine.processes import ProcessTree, receive
from oomscope.probe.process import launch
from oomscope.probe.process.forkserver import NEEDS_FRESH, NO_BYTECODE
from oomscope.probe.process.launch import FRESH_INTERPRETER, WORKER, Order
from oomscope.probe.process.worker import SERVE
from oomscope.probe.result import ProbeResult
from oomscope.virtual.loading import has_gpu

MOST_PARENTS = 2
"""Warm parents at once, a few hundred MiB each."""
OF_THE_JOB = (*ALLOCATOR_VARIABLES, CUBLAS_VARIABLE, VISIBLE_CARDS, NO_BYTECODE)
"""Variables that may differ between workers of one parent: a GPU's libraries alone, which the parent does not touch,
read them, except the last, which a worker heeds when it is forked."""

_START_S = 120.0
_LOOK_S = 0.25


class Parent:
    """One warm parent, which lives until it is closed or this process ends, however that ends.

    Its workers do not depend on it: each has a supervisor, which knows the process that wants the worker.

    Args:
        environment: what its workers see, but for :data:`OF_THE_JOB`.

    Raises:
        OSError: it could not be started.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._early: list[str] | None = None
        self._orders, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far:
            self._process = subprocess.Popen(
                [*WORKER, SERVE, str(far.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={**environment, NO_BYTECODE: "1"},
                pass_fds=(far.fileno(),),
                start_new_session=True,
            )

    def early(self, stop: threading.Event | None = None) -> list[str]:
        """Return the top-level modules that its workers have from the beginning, and fresh ones only later.

        Raises:
            OSError: the parent did not come up.
            StoppedError: ``stop`` was set before it did.
        """
        if self._early is None:
            self._early = _answered(self._orders, stop)["early"]
        return self._early

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def fork(self, order: Order, stop: threading.Event | None = None) -> ProcessTree:
        """Have a worker forked.

        Raises:
            OSError: the parent is lost.
            StoppedError: ``stop`` was set meanwhile.
        """
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        document = {
            "job": str(order.job),
            "result": str(order.result),
            "cwd": str(order.cwd),
            "environment": {name: order.environment.get(name) for name in OF_THE_JOB},
        }
        try:
            with far:
                descriptors = [order.output, order.progress, far.fileno()]
                socket.send_fds(self._orders, [json.dumps(document).encode()], descriptors)
            _answered(near, stop)
        except BaseException:
            near.close()  # the supervisor ends a worker that nobody wants
            raise
        return ProcessTree(near)

    def close(self) -> None:
        """End it."""
        self._orders.close()
        self._process.kill()
        self._process.wait()


def _answered(control: socket.socket, stop: threading.Event | None) -> Any:
    """Return the first message, for as long as ``stop`` is not set.

    Raises:
        StoppedError: ``stop`` is set.
        TimeoutError: none came in time.
        ConnectionError: the other end is closed.
    """
    deadline = time.monotonic() + _START_S
    while stop is None or not stop.is_set():
        try:
            return receive(control, min(deadline, time.monotonic() + _LOOK_S))
        except TimeoutError:
            if time.monotonic() >= deadline:
                raise
    raise launch.StoppedError


def suits(job: ProbeJob) -> bool:
    """Whether a warm parent can serve ``job``: on Linux, and on a virtual card.

    CUDA must not be started before a fork, and what a library does with a GPU while being imported is not known. A
    command does its own imports.
    """
    if isinstance(job.target, StartedTarget):
        return False
    return _can_fork() and backend_of(job) == "virtual"


def _can_fork() -> bool:
    return sys.platform == "linux" and hasattr(os, "pidfd_open")


class WarmParents:
    """The warm parents of one process. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parents: dict[frozenset[tuple[str, str]], Parent] = {}
        self._has_lost_one = False

    def run(
        self,
        job: ProbeJob,
        progress: OnProgress | None = None,
        *,
        log_path: str | os.PathLike[str] | None = None,
        stop: threading.Event | None = None,
    ) -> ProbeResult:
        """Measure ``job`` in a process of its own and return the result.

        Arguments, result and errors are those of :func:`oomscope.probe.process.launch.run`.
        """
        if not suits(job):
            return launch.run(job, progress, log_path=log_path, stop=stop)

        def start(order: Order) -> ProcessTree:
            return self._start(job, order, stop)

        try:
            return launch.run(job, progress, log_path=log_path, stop=stop, start=start, needs_fresh_status=NEEDS_FRESH)
        except launch.FreshProcessNeededError:
            return launch.run(job, progress, log_path=log_path, stop=stop)

    def prepare(self) -> None:
        """Start a parent for a job that is still to be read, so that it imports meanwhile; not where a GPU is."""
        if _can_fork() and not has_gpu():
            environment = usual_environment(own_environment()) | {PROBE_MARK: "1"}
            with contextlib.suppress(OSError), self._lock:
                self._parent(environment)

    @property
    def running(self) -> list[Parent]:
        """The parents that there are, the one that was used last at the end."""
        with self._lock:
            return list(self._parents.values())

    def close(self) -> None:
        """End all parents."""
        with self._lock:
            self._end_all()

    def _end_all(self) -> None:
        for parent in self._parents.values():
            parent.close()
        self._parents.clear()

    def _start(self, job: ProbeJob, order: Order, stop: threading.Event | None) -> ProcessTree:
        """Have a worker forked; start a fresh one where the parent's imports would be noticed, or there is none."""
        with self._lock:
            if stop is not None and stop.is_set():  # only because another thread came before
                raise launch.StoppedError
            try:
                if self._has_lost_one:
                    return FRESH_INTERPRETER(order)
                parent = self._parent(order.environment)
                return FRESH_INTERPRETER(order) if _would_notice(parent, job, stop) else parent.fork(order, stop)
            except OSError:
                self._has_lost_one = True
                self._end_all()
                return FRESH_INTERPRETER(order)

    def _parent(self, environment: Mapping[str, str]) -> Parent:
        """Return the parent that serves jobs in ``environment``; the one used first makes room."""
        key = frozenset(item for item in environment.items() if item[0] not in OF_THE_JOB)
        parent = self._parents.pop(key, None)
        if parent is None:
            while len(self._parents) >= MOST_PARENTS:
                self._parents.pop(next(iter(self._parents))).close()
            parent = Parent(environment)
        self._parents[key] = parent
        return parent


def _would_notice(parent: Parent, job: ProbeJob, stop: threading.Event | None) -> bool:
    """Whether the target of ``job`` could notice that ``parent`` has imported something."""
    return isinstance(job.target, CheckoutTarget) and hides_some_of(parent.early(stop), job.target.place)


def hides_some_of(names: Iterable[str], checkout: Path) -> bool:
    """Whether ``checkout``, or its ``src/``, has a module or package of its own by one of ``names``.

    A folder without ``__init__`` is none: an installed package of its name comes before it anyway.
    """
    endings = ("/__init__.py", *all_suffixes())
    places = [place for place in (checkout, checkout / "src") if place.is_dir()]
    return any(Path(f"{place}/{name}{ending}").is_file() for place in places for name in names for ending in endings)


_parents = WarmParents()
atexit.register(_parents.close)
prepare = _parents.prepare
run = _parents.run
"""Measures a job as :func:`oomscope.probe.process.launch.run` does, with the warm parents of this process."""
