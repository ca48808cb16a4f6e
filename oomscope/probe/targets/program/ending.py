"""Ends a program that the probe has seen enough of, and keeps what was recorded however it ends itself.

The stop is a ``SystemExit``: it passes ``except Exception``, runs ``finally`` blocks and exit handlers, and leaves no
traceback; launchers take the process for one that ended well. It is raised on the main thread, never on a thread of
autograd, where it would pass through C++ frames.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

_AUTOGRAD: Final = "pt_autograd"
"""Prefix of the names of autograd's threads (PyTorch, torch/csrc/autograd/engine.cpp, ``Engine::thread_init``)."""
_LOOK_S: Final = 0.002
_QUIET_LOOKS: Final = 3
_LONGEST_S: Final = 1.0
_WRITERS: Final = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


class EnoughIterations(SystemExit):
    """The program has made as many iterations as the probe asked for, and is ended."""


def stop() -> None:
    """Raise :class:`EnoughIterations` on the main thread, and on this one where Python started it.

    From another thread the main thread gets it at its next instruction: one that waits for a backward pass when that
    has ended.
    """
    here, main = threading.current_thread(), threading.main_thread()
    if here is main:
        raise EnoughIterations
    if main.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main.ident), ctypes.py_object(EnoughIterations))
    if not _is_foreign(here):
        raise EnoughIterations


def _is_foreign(thread: threading.Thread) -> bool:
    """Whether ``thread`` was not started by Python: one of autograd's, or of another library."""
    return isinstance(thread, threading._DummyThread)


def before_hard_exit(first: Callable[[], None]) -> None:
    """Let ``os._exit``, which runs no exit handlers, call ``first``.

    Children that :mod:`multiprocessing` forked end so, and programs that do not trust their threads.
    """
    leave = os._exit

    def leave_after(status: int) -> NoReturn:
        with contextlib.suppress(Exception):  # whatever happens here, the program wants to end
            first()
        leave(status)

    os._exit = leave_after


def await_autograd() -> None:
    """Wait, without the GIL, until autograd's threads have nothing left to do, for a second at most.

    After ``backward()`` has returned they still let go of its graph, for which they take the GIL. One that asks for it
    while the interpreter is being taken apart is ended inside C++ code, and takes the process with it (``terminate
    called without an active exception``). A read from the card would have waited for them.
    """
    deadline = time.monotonic() + _LONGEST_S
    quiet, before = 0, _switches_of_autograd()
    while before != {} and quiet < _QUIET_LOOKS and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        now = _switches_of_autograd()
        quiet = quiet + 1 if now is not None and now == before else 0
        before = now


def skip_collection_at_exit() -> None:
    """Skip Python's garbage collection at exit, which takes a seventh of a short run with torch.

    Open files are flushed: Python does not close those that only a reference cycle holds.
    """
    for each in gc.get_objects():
        if type(each) in _WRITERS:
            with contextlib.suppress(Exception):  # closed, or on a full disk
                each.flush()
    gc.freeze()


def _switches_of_autograd() -> dict[str, str] | None:
    """Return what the kernel counted of each of autograd's threads, by number; None where one is ready to run."""
    found = {}
    with contextlib.suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):  # it has ended in the meantime
                if (task / "comm").read_text().startswith(_AUTOGRAD):
                    state = (task / "stat").read_text().rpartition(")")[2].split()[0]
                    if state == "R":
                        return None
                    found[task.name] = (task / "schedstat").read_text()
    return found
