"""A recording while it runs: the history is on, and whatever may be the last chance to read it is listened for.

That is a failing allocation, SIGTERM, and the end of the process. Needs CUDA to be in use.
"""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import ExitStack
from pathlib import Path

import torch

from oomscope.capture import history, singleton
from oomscope.capture.history import Refusal
from oomscope.capture.messages import Messages
from oomscope.capture.settings import Settings
from oomscope.capture.steps import Steps
from oomscope.capture.termination import Termination
from oomscope.capture.verdict import print_verdict
from oomscope.capture.watch import Coverage, Growth
from oomscope.capture.writer import Keeper
from oomscope.snapshot.provenance import Reason
from oomscope.units import format_size


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
        self._termination = Termination(self._asked_to_end, lambda: self._keeper.is_idle)
        borrowed = history.is_recording()
        self._coverage = None if borrowed else Coverage(settings.max_entries, _allocations)
        self._growth = Growth(torch.cuda.memory_allocated) if settings.watch else None
        self._keeper = Keeper(settings, messages, borrowed=borrowed, afterwards=self._termination.ready)
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
        opening.enter_context(history.refusals.heard_by(self._refused))
        opening.enter_context(self.steps.following())
        self._termination.listen()
        opening.callback(self._termination.leave)
        atexit.register(self._process_ends)
        opening.callback(atexit.unregister, self._process_ends)

    @property
    def is_of_this_process(self) -> bool:
        """False in a fork of the process that records, which shares neither its CUDA nor its files."""
        return self._process == os.getpid()

    def keep(self, reason: Reason, tag: str = "", refusal: Refusal | None = None) -> Path | None:
        """Write a snapshot; None where that is not possible."""
        if not self.is_of_this_process:
            return None
        return self._keeper.keep(reason, tag=tag, step=self.steps.complete, refusal=refusal)

    def end(self, error: BaseException | None) -> None:
        """Write the last snapshot, unless it would tell nothing new, and record no more.

        Args:
            error: what ends the recording.
        """
        if not self.is_of_this_process:
            return
        last = self._kept_failure
        if not self._is_told(error):
            last = self.keep("end" if error is None else "exception")
        self._messages.attempt("recording did not stop cleanly", self._open.close)
        if isinstance(error, torch.OutOfMemoryError) and last is not None:
            snapshot = last
            self._messages.attempt("the failure is not explained", lambda: print_verdict(snapshot, os.environ))

    def _is_told(self, error: BaseException | None) -> bool:
        """Whether it ends by the failure that was kept, or in the step in which the process was asked to end."""
        by_kept_failure = isinstance(error, torch.OutOfMemoryError) and self._failures == 1
        return (by_kept_failure and self._kept_failure is not None) or self._asked_to_end_at == self.steps.complete

    def _refused(self, refusal: Refusal) -> None:
        """Keep the first failure as it stands. A program that lives on may fail often, and each would cost as much."""
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
        self._keeper.look_up_rank()
        self._messages.attempt("the program is not watched", lambda: self._report_on(complete))
        if self._settings.every is not None and complete % self._settings.every == 0:
            self.keep("interval", f"step{complete}")

    def _report_on(self, complete: int) -> None:
        """Say what the steps so far tell of the history and of the program's memory."""
        if self._coverage is not None and (covered := self._coverage.after(complete)) is not None:
            text, is_warning = covered
            (self._messages.warn if is_warning else self._messages.say)(text)
        if self._growth is not None and (grown := self._growth.after_step()) is not None:
            self._messages.warn(grown)


def _allocations() -> int:
    return history.allocations(torch.cuda.current_device())
