"""Starting processes and ending them with everything that they started; this very oomscope in another process.

A checkout may hold an ``oomscope`` of its own, and a relative ``PYTHONPATH`` would find it. So this package is imported
by its place first, and that place is taken off ``sys.path`` again before anything else is imported.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any, Final, NoReturn

import oomscope
from oomscope.probe.machine import supervisor

MESSAGE_BYTES: Final = 64 * 1024
_LONGEST_S: Final = 86_400.0
"""A deadline farther away is none: poll(2) counts milliseconds in 32 bits."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a process ended."""

    status: int
    """Exit status; negative for a signal, as in ``subprocess``."""
    max_rss_bytes: int = 0
    """Largest resident set of the process."""

    @property
    def signal(self) -> int | None:
        """The signal that ended it, None where it exited."""
        return -self.status if self.status < 0 else None


def signal_name(number: int) -> str:
    """Return the name of a signal; a real-time one has only a number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class ProcessTree:
    """A process and everything that it starts, under a supervisor (:mod:`oomscope.probe.machine.supervisor`)."""

    def __init__(self, control: socket.socket, process: subprocess.Popen[bytes] | None = None) -> None:
        self.error = ""
        """Why the command could not be run; empty where it could, or where that is not known yet."""
        self._control = control
        self._process = process
        self._ended: Ended | None = None

    def await_end(self, deadline: float) -> bool:
        """Wait until the process has ended and return True; at ``deadline`` (of ``time.monotonic``) return False."""
        while self._ended is None:
            try:
                message = receive(self._control, deadline)
            except TimeoutError:
                return False
            except OSError:  # the supervisor was killed, and the process with it
                message = {"status": -signal.SIGKILL}
            self.error = message.get("error", self.error)
            if "status" in message:
                self._ended = Ended(**message)
        return True

    def kill(self) -> Ended:
        """Kill what is left of the tree; return how the process ended. Call it once, last."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        self.await_end(float("inf"))
        with self._control, contextlib.suppress(OSError):
            while True:
                receive(self._control, float("inf"))
        if self._process is not None:
            self._process.wait()
        assert self._ended is not None  # noqa: S101 - awaited above
        return self._ended


def start_process_tree(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    cwd: Path | None = None,
    output: int | IO[bytes] | None = None,
    passed: Sequence[int] = (),
) -> ProcessTree:
    """Start ``command`` under a supervisor, as the leader of a session of its own, with nothing on standard input.

    Where it cannot be run, :attr:`ProcessTree.error` says so. ``output`` takes standard output and error; None keeps
    those of this process.
    """
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with far:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", supervisor.__file__, str(far.fileno()), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=cwd,
            env=environment,
            pass_fds=(far.fileno(), *passed),
            start_new_session=True,
        )
    return ProcessTree(near, process)


def receive(control: socket.socket, deadline: float) -> Any:
    """Return the next message of a supervisor or of a warm parent.

    Raises:
        TimeoutError: there is none at ``deadline`` (of ``time.monotonic``).
        ConnectionError: the other end is closed.
    """
    left = max(0.0, deadline - time.monotonic())
    poll = select.poll()
    poll.register(control, select.POLLIN)
    if not poll.poll(None if left > _LONGEST_S else left * 1000):
        raise TimeoutError
    message = control.recv(MESSAGE_BYTES)
    if not message:
        raise ConnectionResetError
    return json.loads(message)


def cores() -> int:
    """Return the cores that this process may run on, where the system says; else those of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def kernel_oom_kills() -> int:
    """Return how often the kernel has killed processes for lack of memory on this machine; 0 where it reports none.

    Linux counts it as ``oom_kill`` in /proc/vmstat (for all control groups).
    """
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0


def die_with_parent() -> None:
    """Ask the kernel (Linux) to kill this process as soon as the thread that started it ends."""
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig = 1  # linux/prctl.h
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


@contextlib.contextmanager
def signals_as_exits() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the program by ``SystemExit`` inside the block, so that it cleans up as after Ctrl-C.

    Only in the main thread, and only where nobody has a handler of their own.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    unhandled = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in unhandled:
        signal.signal(number, _exit)
    try:
        yield
    finally:
        for number in unhandled:
            signal.signal(number, signal.SIG_DFL)


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


_PROGRAM: Final = (
    "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); import oomscope; del sys.path[0]; "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def own_program(module: str) -> tuple[str, ...]:
    """Return the command that runs a module of this oomscope as ``python -m`` does; its arguments come after it.

    ``-P`` keeps the working directory, a checkout, off ``sys.path``.
    """
    place = str(Path(oomscope.__file__).resolve().parent.parent)
    return (sys.executable, "-P", "-c", _PROGRAM, place, module)


COMMAND_LINE: Final = own_program("oomscope")
"""This ``oomscope`` as a command."""
