"""Runs a function in a forked child and brings back what it returns.

What a process has done on a card cannot be undone: the allocator's state and the size of a virtual card stay. So each
run of a target gets a child of its own, forked before anything touches CUDA, and two runs of one job begin alike. The
child hands over its value before it ends, so that nothing is lost where it ends badly.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe, wait
from typing import Generic, NoReturn, TypeVar

from oomscope.errors import ExitCode
from oomscope.probe.machine.processes import die_with_parent

Value = TypeVar("Value")


class ForkedRun(Generic[Value]):
    """A child that calls ``function``; it runs from now on.

    The value is pickled. An exception of ``function`` is a defect of oomscope: it is printed, and ends the child.
    """

    def __init__(self, function: Callable[[], Value]) -> None:
        self._reader, writer = Pipe(duplex=False)
        self._status: int | None = None
        self._pid = os.fork()
        if self._pid == 0:
            self._reader.close()
            _run_child(function, writer)
        writer.close()

    def value(self) -> Value | None:
        """Wait for what the function returns; None where the child ended before. Call it once.

        A process that the child started may hold its end of the pipe for longer than the child lives, hence the look at
        both.
        """
        end = os.pidfd_open(self._pid)
        try:
            value: Value | None = self._reader.recv() if self._reader in wait([self._reader, end]) else None
        except (EOFError, OSError):
            return None
        finally:
            os.close(end)
            self._reader.close()
        return value

    def wait(self) -> int:
        """Wait until the child has ended; return its exit status, negative for a signal."""
        if self._status is None:
            _, raw = os.waitpid(self._pid, 0)
            self._status = os.waitstatus_to_exitcode(raw)
        return self._status


class InlineRun(Generic[Value]):
    """The same as :class:`ForkedRun`, but calls ``function`` in this process and at once."""

    def __init__(self, function: Callable[[], Value]) -> None:
        self._value = function()

    def value(self) -> Value | None:
        """Return what the function returned."""
        return self._value

    def wait(self) -> int:
        """Return 0."""
        return 0


def end_as(status: int) -> NoReturn:
    """End this process as a child with ``status`` ended; negative for a signal."""
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _run_child(function: Callable[[], object], writer: Connection) -> NoReturn:
    """Run ``function`` in the child, and end it."""
    status = ExitCode.INTERNAL
    try:
        die_with_parent()
        with writer:
            writer.send(function())
        status = ExitCode.OK
    except BaseException:  # noqa: BLE001 - nothing of the child may go on beyond this
        traceback.print_exc()
    leave(status)


def leave(status: int) -> NoReturn:
    """End the process as an interpreter ends, but without taking apart what it imported, which takes torch a second.

    Threads are waited for and exit handlers run; the kernel takes back the rest. The interpreter is never finalised,
    in which autograd's threads would be caught.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)
