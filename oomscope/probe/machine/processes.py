"""Starting and ending processes: this very oomscope in another one, a child's deadline, and all that a child started.

A process that makes a session of its own, or outlives its parent, leaves the child's process group. It still
carries the child's environment, so what is left over is found by a mark in there (through ``/proc``, on Linux).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

import oomscope
from oomscope.capture.singleton import PROBE_MARK

MARK = PROBE_MARK
"""The environment variable whose value tells one probe's processes from all others."""
COMMAND_MARK = "OOMSCOPE_COMMAND"
"""The same for what the command of a probe started: the marks of that probe and of those around it. The command may be
an oomscope, whose probes have marks of their own, or record itself, which nothing does that carries :data:`MARK`."""
MARK_BYTES = 16
"""Bytes of a mark, which is written in hexadecimal digits: all are of one length."""

_POLL_S = 0.02
_SWEEPS = 20


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a process ended."""

    status: int
    """Exit status; negative for a signal, as in ``subprocess``."""
    max_rss_bytes: int
    """Its largest resident set."""
    void: bool = False
    """Whether its end says nothing about the job, which has to be run once more in a fresh process."""

    @property
    def signal(self) -> int | None:
        """The signal that ended it, None where it exited."""
        return -self.status if self.status < 0 else None


def await_end(process: subprocess.Popen[bytes], deadline: float) -> bool:
    """Wait until ``process`` has ended and return True; at ``deadline`` (of ``time.monotonic``) return False.

    The process is not reaped: its number, which is also that of its group, cannot be taken by another yet.
    """
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(_POLL_S, left))
    return True


def kill_all(process: subprocess.Popen[bytes], mark: str) -> Ended:
    """Kill ``process``, its group and every process marked ``mark``; return how ``process`` itself ended.

    ``process`` must lead its group and must not have been waited for.
    """
    kill_group(process.pid)
    ended = reap(process.pid)
    process.returncode = ended.status
    kill_marked(mark)
    return ended


def kill_group(leader: int) -> None:
    """Kill the process ``leader``, which nobody has waited for yet, and its group."""
    for kill in (os.killpg, os.kill):  # a process that was forked a moment ago may lead no group yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(leader, signal.SIGKILL)


def reap(pid: int) -> Ended:
    """Wait for the child ``pid`` and return how it ended."""
    _, raw, usage = os.wait4(pid, 0)
    unit = 1 if sys.platform == "darwin" else 1024
    return Ended(status=os.waitstatus_to_exitcode(raw), max_rss_bytes=usage.ru_maxrss * unit)


def kill_marked(mark: str) -> None:
    """Kill every process marked ``mark``."""
    for _ in range(_SWEEPS):
        strays = list(_marked(mark))
        for pid in strays:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not strays:
            break
        time.sleep(_POLL_S)


def kernel_oom_kills() -> int:
    """Return how often the kernel has killed for want of memory on this machine; 0 where it does not say.

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


def _marked(mark: str) -> Iterator[int]:
    """Yield the living processes whose environment carries ``mark``; zombies have none."""
    own, of_commands = f"{MARK}={mark}".encode(), f"{COMMAND_MARK}=".encode()
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            variables = (directory / "environ").read_bytes().split(b"\0")
            if own in variables or any(
                mark.encode() in value.removeprefix(of_commands).split()
                for value in variables
                if value.startswith(of_commands)
            ):
                yield int(directory.name)


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
