"""Ends a process together with everything that it started, whatever session, environment or parent that has by then.

A supervisor stands between a process and the one who wants it. It is a child subreaper (Linux, prctl(2)): what is
orphaned below it becomes its child, so killing its children until there are none ends the whole tree. It does so when
it is told to, and when its socket closes because the process that wants it is gone.

It sends three kinds of message over the socket, in JSON: ``{"pid": N}`` at first; ``{"error": TEXT}`` where the command
cannot be run; ``{"status": N, "max_rss_bytes": N}`` when the process has ended. Anything that it receives, and the end
of the stream, is the order to kill.

``python supervisor.py FD COMMAND...`` supervises a command. Little is imported here: its start delays each probe.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Final, NoReturn

_IGNORED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_IGNORED_BY_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)
_SUBREAPER: Final = 36  # PR_SET_CHILD_SUBREAPER, linux/prctl.h
_POLL_S: Final = 0.005
_CANNOT_RUN: Final = 127
"""Exit status of a shell for a command that is not there (POSIX)."""


def fork_supervised(control: socket.socket) -> None:
    """Make this process a supervisor and return in its child, which leads a session of its own."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, _ignore)  # a handler, so that each end wakes the loop
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in _IGNORED}
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        os.close(wake)
        os.close(waker)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.setsid()
        return
    _leave_descriptors_to_the_child({control.fileno(), wake, waker})
    _Supervisor(control, wake, pid).run()


def run_supervised(control: socket.socket, command: list[str]) -> NoReturn:
    """Run ``command`` under this process."""
    control.set_inheritable(False)
    fork_supervised(control)
    for number in _IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606
    except (OSError, ValueError) as error:
        control.send(json.dumps({"error": getattr(error, "strerror", None) or str(error)}).encode())
    os._exit(_CANNOT_RUN)


class _Supervisor:
    def __init__(self, control: socket.socket, wake: int, pid: int) -> None:
        self._control = control
        self._wake = wake
        self._pid = pid
        self._report_end(pid=pid)

    def run(self) -> NoReturn:
        """Reap what ends; from the order on, kill until nothing is left."""
        poll = select.poll()
        for descriptor in (self._control.fileno(), self._wake):
            poll.register(descriptor, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._wake in ready:
                os.read(self._wake, 4096)
            self._reap()
            if self._control.fileno() in ready:
                break
        while self._reap():
            for child in _children():
                _kill(child)
            time.sleep(_POLL_S)
        os._exit(0)

    def _reap(self) -> bool:
        """Reap the children that have ended; return whether any are left."""
        while True:
            try:
                pid, raw, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._pid:
                self._report_end(status=os.waitstatus_to_exitcode(raw), max_rss_bytes=usage.ru_maxrss * 1024)

    def _report_end(self, **document: int) -> None:
        try:
            self._control.send(json.dumps(document).encode())
        except OSError:  # nobody listens any more
            return


def _children() -> list[int]:
    """Return the processes whose parent this one is."""
    own, found = str(os.getpid()), []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                with open(f"/proc/{entry.name}/stat", "rb") as file:  # noqa: PTH123 - pathlib takes its time
                    parent = file.read().rpartition(b")")[2].split()[1]
            except OSError:  # the process is gone
                continue
            if parent.decode() == own:
                found.append(int(entry.name))
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _leave_descriptors_to_the_child(kept: set[int]) -> None:
    """Close what the child has too: whoever reads from a pipe waits for its last writer."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    for entry in list(os.scandir("/proc/self/fd")):
        if int(entry.name) > 2 and int(entry.name) not in kept:
            try:
                os.close(int(entry.name))
            except OSError:  # the process that listed them
                continue
    os.chdir("/")


def _ignore(number: int, frame: object) -> None:
    """Do nothing; the wakeup descriptor reports the signal."""


if __name__ == "__main__":
    run_supervised(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
