"""The near end of a warm parent: starts one, sends it orders, and handles the workers that it forks.

:mod:`oomscope.probe.process.forkserver` is the far end, and says what passes between the two.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from typing import Any

from oomscope.probe.machine.environment import ALLOCATOR_VARIABLES, CUBLAS_VARIABLE
from oomscope.probe.machine.processes import MARK, MARK_BYTES, Ended, kill_all, kill_group, kill_marked
from oomscope.probe.process import launch
from oomscope.probe.process.forkserver import MESSAGE_BYTES, NEEDS_FRESH, NO_BYTECODE
from oomscope.probe.process.worker import SERVE
from oomscope.probe.process.workers import WORKER, Order

OF_THE_JOB = (MARK, *ALLOCATOR_VARIABLES, CUBLAS_VARIABLE, "CUDA_VISIBLE_DEVICES", NO_BYTECODE)
"""Variables that may differ between workers of one parent: but for the last, which a worker heeds when it is forked,
only a GPU's libraries read them, and it touches none."""

_START_S = 120.0
_LOOK_S = 0.25


class Parent:
    """One warm parent, which lives until it is closed or this process ends, however that ends.

    Args:
        environment: what its workers see, but for :data:`OF_THE_JOB`.
        stop: once it is set, from another thread, nobody wants it any more.

    Raises:
        OSError: it did not come up.
        StoppedError: ``stop`` was set before it did.
    """

    def __init__(self, environment: Mapping[str, str], stop: threading.Event | None = None) -> None:
        self.workers = 0
        """How many of them there are."""
        self.lost = False
        """Whether it ended before it was closed."""
        mark = secrets.token_hex(MARK_BYTES)
        self._orders, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far:
            self._process = subprocess.Popen(
                [*WORKER, SERVE, str(far.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={**environment, NO_BYTECODE: "1", MARK: mark},
                pass_fds=(far.fileno(),),
                start_new_session=True,
            )
        try:
            self.early: list[str] = _answered(self._orders, stop)["early"]
            """Top-level modules that its workers have from the beginning, and fresh ones only later."""
        except BaseException:
            self._orders.close()
            kill_all(self._process, mark)  # while it imports it does not see that the socket is closed
            raise

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def fork(self, order: Order, stop: threading.Event | None = None) -> WarmWorker:
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
            return WarmWorker(self, near, _answered(near, stop)["pid"], order.mark)
        except BaseException as error:
            self.lost = isinstance(error, OSError)
            near.close()  # it kills a worker that nobody listens to
            raise

    def close(self) -> None:
        """End it and all its workers."""
        self._orders.close()
        try:
            self._process.wait(_START_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class WarmWorker:
    """A :class:`~oomscope.probe.process.workers.Worker` that is a child of a warm parent.

    Args:
        parent: whose child it is.
        control: the near end of its control socket.
        pid: its process.
        mark: what its family carries in their environment.
    """

    def __init__(self, parent: Parent, control: socket.socket, pid: int, mark: str) -> None:
        self.pid = pid
        self._parent = parent
        self._control = control
        self._mark = mark
        self._ended = False
        parent.workers += 1

    def await_end(self, deadline: float) -> bool:
        """Wait until it has ended, or its parent has."""
        if not self._ended:
            try:
                _received(self._control, deadline)
            except TimeoutError:
                return False
            except OSError:
                self._parent.lost = True
            self._ended = True
        return True

    def kill(self) -> Ended:
        """Kill it and its family; void where its parent was lost, or it asks for a fresh process."""
        with self._control:
            if not self._parent.lost:
                kill_group(self.pid)
            self.await_end(float("inf"))
            ended = self._reaped()
        kill_marked(self._mark)
        self._parent.workers -= 1
        return ended

    def _reaped(self) -> Ended:
        with contextlib.suppress(OSError):
            self._control.send(b"reap")
            document = _received(self._control, float("inf"))
            status = document["status"]
            return Ended(status=status, max_rss_bytes=document["max_rss_bytes"], void=status == NEEDS_FRESH)
        return Ended(status=os.EX_UNAVAILABLE, max_rss_bytes=0, void=True)


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
            return _received(control, min(deadline, time.monotonic() + _LOOK_S))
        except TimeoutError:
            if time.monotonic() >= deadline:
                raise
    raise launch.StoppedError


def _received(control: socket.socket, deadline: float) -> Any:
    """Return the next message.

    Raises:
        TimeoutError: there is none at ``deadline`` (of ``time.monotonic``).
        ConnectionError: the other end is closed.
    """
    left = max(0.0, deadline - time.monotonic())
    poll = select.poll()
    poll.register(control, select.POLLIN)
    if not poll.poll(None if left == float("inf") else left * 1000):
        raise TimeoutError
    message = control.recv(MESSAGE_BYTES)
    if not message:
        raise ConnectionResetError
    return json.loads(message)
