"""SIGTERM, as a scheduler sends it at preemption or at the time limit: something is done first, then what would be.

The handler that was there before is called afterwards; where there was none the process ends by the signal, so that
whoever waits for it sees why.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType


class Termination:
    """Calls ``first`` when the process is asked to end.

    Python runs handlers in the main thread between two instructions: a process that hangs inside a kernel or a
    collective is not reached.

    Args:
        first: what to do.
        is_ready: whether that can be done now; where not, :meth:`ready` is called when it can.
    """

    def __init__(self, first: Callable[[], object], is_ready: Callable[[], bool]) -> None:
        self._first = first
        self._is_ready = is_ready
        self._previous: Callable[[int, FrameType | None], object] | int | None = None
        self._waiting = False

    def listen(self) -> None:
        """Take the place of the present handler; only the main thread can, elsewhere nothing happens."""
        if threading.current_thread() is not threading.main_thread():
            return
        previous = signal.getsignal(signal.SIGTERM)
        if previous is not None:  # None: installed by C code, which could not be called afterwards
            self._previous = previous
            signal.signal(signal.SIGTERM, self._handle)

    def leave(self) -> None:
        """Put the previous handler back, unless another has come in between; that one may call this one still."""
        in_place = signal.getsignal(signal.SIGTERM) == self._handle
        if in_place and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._previous)

    def ready(self) -> None:
        """Send the signal that came too early once more."""
        if self._waiting:
            self._waiting = False
            os.kill(os.getpid(), signal.SIGTERM)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._waiting = True  # before the question, so that nobody becomes ready unheard
        if not self._is_ready():
            return
        self._waiting = False
        self._first()
        if callable(self._previous):
            self._previous(number, frame)
        elif self._previous == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
