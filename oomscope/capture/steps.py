"""Training steps: counted and marked on the allocator's events, and what a recording reports of them while it runs.

A program that says nothing is followed through torch's own hook on optimizers: a step is over when the optimizer that
stepped first has stepped again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from oomscope.capture import history
from oomscope.capture.messages import Messages
from oomscope.snapshot.metadata import Metadata, to_text
from oomscope.snapshot.trace import Moment
from oomscope.units import MiB, format_size

if TYPE_CHECKING:
    from torch import Tensor

EVENTS_PER_BLOCK: Final = 3
"""Events that torch records of a block: ``alloc``, ``free_requested`` and ``free_completed``."""
MEASURED_STEP: Final = 2
"""The step whose events are counted: the first one still creates the optimizer's states."""
FEW_STEPS: Final = 2
ROUNDED_FROM: Final = 100
"""Number of steps from which no tenths are shown."""
LEAST_GROWTH: Final = MiB
"""Bytes a step below which growth is not reported."""
FIRST_REPORT: Final = 3
"""Steps in a row that must have grown; it is reported again after twice as many."""


class FirstOptimizer:
    """The optimizer of a program that stepped first, whose steps count; once it is gone, the next one that steps."""

    def __init__(self) -> None:
        self._optimizer: weakref.ref[Optimizer] | None = None

    @property
    def optimizer(self) -> Optimizer | None:
        """None where none has stepped, or it is gone."""
        return None if self._optimizer is None else self._optimizer()

    def steps(self, optimizer: Optimizer) -> bool:
        """Return whether ``optimizer``, which steps, is that one."""
        if self.optimizer is None:
            self._optimizer = weakref.ref(optimizer)
        return self.optimizer is optimizer


def stepped_by(optimizer: Optimizer) -> Iterator[Tensor]:
    """Yield the tensors that an optimizer steps."""
    return (each for group in optimizer.param_groups for each in group["params"])


def count_stepped(optimizer: Optimizer) -> int:
    """Return how many tensors an optimizer steps."""
    return sum(len(group["params"]) for group in optimizer.param_groups)


class Steps:
    """Counts steps from 0, and calls ``after_each`` with the number of complete ones."""

    def __init__(self, after_each: Callable[[int], None], messages: Messages) -> None:
        self.complete = 0
        self._after_each = after_each
        self._messages = messages
        self._is_manual = False
        self._first = FirstOptimizer()
        self._mark = ""

    def count_step(self) -> None:
        """Count a step; from then on the steps of optimizers are not counted."""
        self._is_manual = True
        self._advance()

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow the optimizers of the process while the block runs."""
        handle = register_optimizer_step_post_hook(self._optimizer_stepped)
        self._mark_step()
        try:
            yield
        finally:
            handle.remove()
            self._set_mark("")

    def _optimizer_stepped(self, optimizer: Optimizer, *_: object) -> None:
        if not self._is_manual and self._first.steps(optimizer):
            self._advance()

    def _advance(self) -> None:
        self.complete += 1
        self._mark_step()
        self._after_each(self.complete)

    def _mark_step(self) -> None:
        mark = to_text(Metadata(Moment("", self.complete, -1)))
        self._messages.attempt("steps are not marked", lambda: self._set_mark(mark))

    def _set_mark(self, text: str) -> None:
        """Mark the events to come, unless the program marks them itself."""
        if history.can_mark() and history.marked() == self._mark:
            history.mark(text)
            self._mark = text


class Coverage:
    """Says once how many steps a ring of ``max_entries`` events covers, by how many blocks were handed out."""

    def __init__(self, max_entries: int, allocations: Callable[[], int]) -> None:
        self._max_entries = max_entries
        self._allocations = allocations
        self._before = 0

    def after(self, step: int) -> tuple[str, bool] | None:
        """Return the message due after ``step`` steps and whether it is a warning, or None."""
        if step == MEASURED_STEP - 1:
            self._before = self._allocations()
        events = EVENTS_PER_BLOCK * (self._allocations() - self._before) if step == MEASURED_STEP else 0
        if events <= 0:
            return None
        steps = self._max_entries / events
        shown = f"{steps:,.1f}" if steps < ROUNDED_FROM else f"{round(steps):,}"
        covers = f"history of {self._max_entries:,} events covers about {shown} steps"
        if steps >= FEW_STEPS:
            return covers, False
        return f"{covers}: raise --max-entries to {FEW_STEPS * events:,} or more", True


class Growth:
    """Says when the live bytes after a step keep rising."""

    def __init__(self, live: Callable[[], int]) -> None:
        self._live = live
        self._last: int | None = None
        self._begun = 0
        self._steps = 0
        self._report_at = FIRST_REPORT

    def after_step(self) -> str | None:
        """Return the message after a step; None where memory does not keep growing."""
        live, last = self._live(), self._last
        self._last = live
        if last is None or live - last < LEAST_GROWTH:
            self._begun, self._steps, self._report_at = live, 0, FIRST_REPORT
            return None
        self._steps += 1
        if self._steps < self._report_at:
            return None
        self._report_at = 2 * self._steps
        mean = (live - self._begun) // self._steps
        return (
            f"live memory has grown in {self._steps} steps in a row, {format_size(mean)} a step, "
            f"to {format_size(live)}: look for tensors that are kept (lists of losses, caches, hooks)"
        )
