"""A recording while it runs: the history is on, and is read before anything that may be the end of the process.

That is a failing allocation, SIGTERM, and the end of the process. Needs CUDA to be in use.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Final

import torch

from oomscope.capture import history, singleton
from oomscope.capture.messages import Messages
from oomscope.capture.settings import VARIABLE, Settings
from oomscope.capture.steps import Coverage, Growth, Steps
from oomscope.capture.writer import SnapshotWriter
from oomscope.errors import OomscopeError
from oomscope.snapshot.provenance import Reason, Refused
from oomscope.units import format_size

LONGEST_S: Final = 120.0
"""Seconds that explaining a failure may take; a snapshot of some million events takes half a minute."""


class Running:
    """Starts to record when it is made, and stops at :meth:`end`."""

    def __init__(self, settings: Settings, messages: Messages) -> None:
        self._settings = settings
        self._messages = messages
        self._process = os.getpid()
        self._failures = 0
        self._kept_failure: Path | None = None
        self._asked_to_end_at: int | None = None
        self.steps = Steps(self._step_is_complete, messages)
        self._termination = Termination(self._asked_to_end, lambda: self._writer.is_idle)
        borrowed = history.is_recording()
        self._coverage = None if borrowed else Coverage(settings.max_entries, _allocations)
        self._growth = Growth(torch.cuda.memory_allocated) if settings.watch else None
        self._writer = SnapshotWriter(settings, messages, borrowed=borrowed, afterwards=self._termination.ready)
        with ExitStack() as opening:
            self._start(opening, borrowed=borrowed)
            self._open = opening.pop_all()

    def _start(self, opening: ExitStack, *, borrowed: bool) -> None:
        singleton.take(self)
        opening.callback(singleton.release, self)
        if borrowed:
            self._messages.say("the program records its allocator itself; snapshots are taken of that history")
        else:
            history.start(max_entries=self._settings.max_entries, stacks=self._settings.stacks)
            opening.callback(history.stop)
        opening.enter_context(history.refusals.notifying(self._refused))
        opening.enter_context(self.steps.following())
        self._termination.listen()
        opening.callback(self._termination.leave)
        atexit.register(self._process_ends)
        opening.callback(atexit.unregister, self._process_ends)

    @property
    def is_of_this_process(self) -> bool:
        """False in a fork of the process that records, which shares neither its CUDA nor its files."""
        return self._process == os.getpid()

    def keep(self, reason: Reason, tag: str = "", refusal: Refused | None = None) -> Path | None:
        """Write a snapshot; None where that is not possible."""
        if not self.is_of_this_process:
            return None
        return self._writer.keep(reason, tag=tag, step=self.steps.complete, refusal=refusal)

    def end(self, error: BaseException | None) -> None:
        """Write the last snapshot, unless it would add nothing new, and stop recording; ``error`` is what ends it."""
        if not self.is_of_this_process:
            return
        is_oom, last = isinstance(error, torch.OutOfMemoryError), self._kept_failure
        is_recorded_already = is_oom and self._failures == 1 and last is not None
        if not is_recorded_already and self._asked_to_end_at != self.steps.complete:
            last = self.keep("end" if error is None else "exception")
        self._messages.attempt("recording did not stop cleanly", self._open.close)
        if is_oom and not self._failures:
            self._messages.say("PyTorch's allocator refused nothing: the program raised this error, or a library did")
        elif is_oom and last is not None:
            snapshot = last
            self._messages.attempt("the failure is not explained", lambda: _print_verdict(snapshot))

    def _refused(self, refusal: Refused) -> None:
        """Write a snapshot of the first failure. A program that survives may fail often; each would cost as much."""
        self._failures += 1
        if self._kept_failure is None and self.is_of_this_process:
            asked = format_size(refusal.requested_bytes)
            self._messages.say(f"out of memory: {asked} asked for on cuda:{refusal.device}")
            self._kept_failure = self.keep("oom", "oom", refusal)

    def _asked_to_end(self) -> None:
        if self.keep("signal") is not None:
            self._asked_to_end_at = self.steps.complete

    def _process_ends(self) -> None:
        self.end(getattr(sys, "last_value", None))

    def _step_is_complete(self, complete: int) -> None:
        if not self.is_of_this_process:
            return
        self._writer.look_up_rank()
        self._messages.attempt("steps and growth are not reported", lambda: self._report_on(complete))
        if self._settings.every is not None and complete % self._settings.every == 0:
            self.keep("interval", f"step{complete}")

    def _report_on(self, complete: int) -> None:
        """Report what the steps so far show of the history and of the program's memory."""
        if self._coverage is not None and (covered := self._coverage.after(complete)) is not None:
            text, is_warning = covered
            (self._messages.warn if is_warning else self._messages.say)(text)
        if self._growth is not None and (grown := self._growth.after_step()) is not None:
            self._messages.warn(grown)


def _allocations() -> int:
    return history.blocks_moved(torch.cuda.current_device())[0]


def _print_verdict(snapshot: Path) -> None:
    """Print to standard error what ``snapshot`` shows, in eight lines, before the process ends.

    Nothing where no interpreter is named: the program's own may lack what an explanation needs.

    Raises:
        OomscopeError: the explanation failed or took longer than :data:`LONGEST_S`.
    """
    python = os.environ.get(singleton.PYTHON)
    if not python:
        return
    quiet = {name: text for name, text in os.environ.items() if not name.startswith(VARIABLE)}
    command = [python, "-P", "-m", "oomscope", "explain", str(snapshot), "--quiet"]
    where, remedy = f"oomscope explain {snapshot}", "run it once more by hand"
    try:
        done = subprocess.run(
            command, env=quiet, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LONGEST_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise OomscopeError(f"it took more than {LONGEST_S:.0f} s", where=where, remedy=remedy) from None
    if done.returncode:
        last = [f"exit code {done.returncode}", *done.stderr.strip().splitlines()][-1]
        raise OomscopeError(last, where=where, remedy=remedy)
    sys.stderr.write(done.stdout)
    sys.stderr.flush()


class Termination:
    """Calls ``first`` at SIGTERM, as a scheduler sends it at preemption or at the time limit.

    The handler that was there before is called afterwards; where there was none the process ends by the signal, so that
    whoever waits for it sees why. Python runs handlers in the main thread between two instructions: a process that
    hangs inside a kernel or a collective is not reached.

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
        self._waiting = True  # before the question, so that no signal of readiness is missed
        if not self._is_ready():
            return
        self._waiting = False
        self._first()
        if callable(self._previous):
            self._previous(number, frame)
        elif self._previous == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
