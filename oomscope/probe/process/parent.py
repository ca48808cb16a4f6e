"""The near end of a warm parent: starts one, and sends it orders for workers.

:mod:`oomscope.probe.process.forkserver` is the far end, and says what passes between the two.
"""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from typing import Any

from oomscope.probe.machine.environment import ALLOCATOR_VARIABLES, CUBLAS_VARIABLE
from oomscope.probe.machine.processes import Family, receive
from oomscope.probe.process import launch
from oomscope.probe.process.forkserver import NO_BYTECODE
from oomscope.probe.process.worker import SERVE
from oomscope.probe.process.workers import WORKER, Order

OF_THE_JOB = (*ALLOCATOR_VARIABLES, CUBLAS_VARIABLE, "CUDA_VISIBLE_DEVICES", NO_BYTECODE)
"""Variables that may differ between workers of one parent: but for the last, which a worker heeds when it is forked,
only a GPU's libraries read them, and it touches none."""

_START_S = 120.0
_LOOK_S = 0.25


class Parent:
    """One warm parent, which lives until it is closed or this process ends, however that ends.

    Its workers do not depend on it: each has a supervisor, which knows who wants the worker.

    Args:
        environment: what its workers see, but for :data:`OF_THE_JOB`.
        stop: once it is set, from another thread, nobody wants it any more.

    Raises:
        OSError: it did not come up.
        StoppedError: ``stop`` was set before it did.
    """

    def __init__(self, environment: Mapping[str, str], stop: threading.Event | None = None) -> None:
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
        try:
            self.early: list[str] = _answered(self._orders, stop)["early"]
            """Top-level modules that its workers have from the beginning, and fresh ones only later."""
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def fork(self, order: Order, stop: threading.Event | None = None) -> Family:
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
        return Family(near)

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
