"""The warm parent: a process that has imported what a probe needs, and forks a worker for each job that it is sent.

It runs nothing of any target, has one thread and one loop, and is done when the socket that orders come by is closed.
A worker leaves the loop by returning from :func:`serve`, so that it goes on where a fresh one would have begun: its
stacks, ``sys.argv`` and ``__main__`` are those of a fresh process.

An order is one message with three descriptors: the log, the progress pipe and the worker's control socket. By
that one come the process number, then ``ended``; the worker stays a zombie, so that its number is no other's, until
it is answered, and is then reaped. A control socket that is closed before that is an order to kill.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import socket
import sys
from collections.abc import Callable, Set
from typing import Any

from oomscope.probe.job import Progress
from oomscope.probe.machine.processes import MARK, kill_group, kill_marked, reap
from oomscope.probe.process.preload import preload, sets_too_late, top_level_names
from oomscope.probe.targets.importing import uncollected

MESSAGE_BYTES = 64 * 1024
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
"""Which an interpreter reads when it starts."""
NEEDS_FRESH = 75
"""The exit status of a worker that found itself to have been warm in vain; EX_TEMPFAIL of sysexits.h."""


def serve(descriptor: int, fresh_names: Set[str]) -> list[str]:
    """Fork a worker for each order; return in each of them, with its arguments.

    In the parent itself it never returns: the process ends when the socket is closed.

    Args:
        descriptor: the socket's number.
        fresh_names: the top-level modules that a fresh worker has when it comes to its target.
    """
    mark_address = _address_of_mark()
    with uncollected():
        preload()
    early = sorted(top_level_names() - fresh_names)
    gc.collect()
    gc.freeze()  # what is there now is never garbage: no worker has to look through it, and pages stay shared
    with socket.socket(fileno=descriptor) as orders:
        orders.send(json.dumps({"early": early}).encode())
        return _Parent(orders, mark_address).run()


class OnceImported:
    """Passes progress on; ends the worker once the target's imports have set a variable that came too late.

    Args:
        progress: told of everything.
    """

    def __init__(self, progress: Callable[[Progress], None]) -> None:
        self._progress = progress
        self._before: dict[str, str] | None = dict(os.environ)

    def __call__(self, progress: Progress) -> None:
        """Pass ``progress`` on; look at the environment when the first stage after the imports begins."""
        if self._before is not None and progress.stage != "import":
            if sets_too_late(self._before, os.environ):
                os._exit(NEEDS_FRESH)
            self._before = None
        self._progress(progress)


class _Job:
    """A worker that was forked, and not reaped yet.

    Args:
        pid: its process.
        mark: what its family carries in their environment.
        control: where the one who ordered it listens.
    """

    def __init__(self, pid: int, mark: str, control: socket.socket) -> None:
        self.pid = pid
        self.mark = mark
        self.control = control
        self.end = os.pidfd_open(pid)
        self.ended = False
        self._tell(pid=pid)

    def say_ended(self) -> None:
        """Tell that the process has ended."""
        self.ended = True
        self._tell(ended=True)

    def finish(self) -> None:
        """Kill what is left of it, reap it, and tell how it ended if anybody listens."""
        asked = self._is_asked()
        kill_group(self.pid)
        ended = reap(self.pid)
        if asked:
            self._tell(status=ended.status, max_rss_bytes=ended.max_rss_bytes)
        else:
            kill_marked(self.mark)
        self.close()

    def close(self) -> None:
        """Let go of the descriptors."""
        self.control.close()
        os.close(self.end)

    def _is_asked(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(self.control.recv(MESSAGE_BYTES, socket.MSG_DONTWAIT))
        return False

    def _tell(self, **document: Any) -> None:
        with contextlib.suppress(OSError):
            self.control.send(json.dumps(document).encode())


class _Parent:
    def __init__(self, orders: socket.socket, mark_address: int) -> None:
        self._orders = orders
        self._mark_address = mark_address
        self._jobs: list[_Job] = []

    def run(self) -> list[str]:
        while True:
            ready = self._ready()
            for job in list(self._jobs):
                if job.control.fileno() in ready:
                    self._jobs.remove(job)
                    job.finish()
                elif job.end in ready:
                    job.say_ended()
            if self._orders.fileno() in ready:
                arguments = self._take()
                if arguments is not None:
                    return arguments

    def _ready(self) -> set[int]:
        poll = select.poll()
        watched = [self._orders.fileno(), *(job.control.fileno() for job in self._jobs)]
        for descriptor in [*watched, *(job.end for job in self._jobs if not job.ended)]:
            poll.register(descriptor, select.POLLIN)
        return {descriptor for descriptor, _ in poll.poll()}

    def _take(self) -> list[str] | None:
        """Fork a worker for the next order; return its arguments in there, and None in the parent."""
        message, descriptors, _, _ = socket.recv_fds(self._orders, MESSAGE_BYTES, 3, socket.MSG_CMSG_CLOEXEC)
        if not message:
            for job in self._jobs:
                job.finish()
            os._exit(0)
        order = json.loads(message)
        output, progress, control = descriptors[0], descriptors[1], socket.socket(fileno=descriptors[2])
        pid = os.fork()
        if pid == 0:
            for job in self._jobs:
                job.close()
            control.close()
            return _become(order, output, progress, self._mark_address)
        os.close(output)
        os.close(progress)
        self._jobs.append(_Job(pid, order["environment"][MARK], control))
        return None


def _become(order: dict[str, Any], output: int, progress: int, mark_address: int) -> list[str]:
    """Turn this process, forked a moment ago, into the worker of ``order``; return its arguments."""
    import numpy as np

    os.setsid()
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.chdir(order["cwd"])
    for name, value in order["environment"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    sys.dont_write_bytecode = bool(os.environ.get(NO_BYTECODE))
    mark = order["environment"][MARK].encode()
    ctypes.memmove(mark_address, mark, len(mark))
    np.random.seed()  # as after a start: Python reseeds its own generator after a fork, numpy does not
    arguments = [order["job"], order["result"], str(progress)]
    sys.argv[1:] = sys.orig_argv[-2:] = arguments
    return arguments


def _address_of_mark() -> int:
    """Return where the mark lies in the memory that the kernel shows as this process's environment.

    A forked process shows what lies at the same place in its own memory, so the mark written there is found in
    ``/proc`` as that of a process that was started with it, and is inherited in the same way.
    """
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    return int(getenv(MARK.encode()))
