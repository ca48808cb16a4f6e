"""What a recording says while the program trains: how many steps its history covers, and that memory keeps growing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from oomscope.units import MiB, format_size

EVENTS_PER_BLOCK: Final = 3
"""torch records ``alloc``, ``free_requested`` and ``free_completed``."""
MEASURED_STEP: Final = 2
"""The first step still creates the optimizer's states."""
FEW_STEPS: Final = 2
LEAST_GROWTH: Final = MiB
"""Bytes a step below which growth is not reported."""
FIRST_REPORT: Final = 3
"""Steps in a row that must have grown; it is reported again after twice as many."""


class Coverage:
    """Says once how many steps the ring of events covers.

    Args:
        max_entries: events that the ring holds.
        allocations: returns how many blocks the allocator has handed out.
    """

    def __init__(self, max_entries: int, allocations: Callable[[], int]) -> None:
        self._max_entries = max_entries
        self._allocations = allocations
        self._before = 0

    def after(self, step: int) -> tuple[str, bool] | None:
        """Return what is to be said after ``step`` steps, and whether it is a warning; else None."""
        if step == MEASURED_STEP - 1:
            self._before = self._allocations()
        if step != MEASURED_STEP:
            return None
        events = EVENTS_PER_BLOCK * (self._allocations() - self._before)
        if events <= 0:
            return None
        steps = self._max_entries / events
        covers = f"history of {self._max_entries:,} events covers about {steps:,.1f} steps"
        if steps >= FEW_STEPS:
            return covers, False
        return f"{covers}: raise --max-entries to {FEW_STEPS * events:,} or more", True


class Growth:
    """Says when the live bytes after a step keep rising.

    Args:
        live: returns the bytes that are allocated now.
    """

    def __init__(self, live: Callable[[], int]) -> None:
        self._live = live
        self._last: int | None = None
        self._begun = 0
        self._steps = 0
        self._report_at = FIRST_REPORT

    def after_step(self) -> str | None:
        """Return what is to be said after a step; None where memory does not keep growing."""
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
