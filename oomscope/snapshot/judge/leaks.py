"""Find memory that grows from iteration to iteration at the same point of the step.

What is live at the end of an iteration should not depend on which one it is. Where it rises at the end of every
iteration, blocks of several iterations are alive side by side; their stack is what leaks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from oomscope.snapshot.lifetimes import Indices
from oomscope.snapshot.timeline import Timeline
from oomscope.snapshot.trace import Stack
from oomscope.units import MiB

MIN_ITERATIONS: Final = 3
"""Whole iterations needed: the first one may still create optimizer states, and one step is no trend."""
MIN_GROWTH: Final = MiB
"""Bytes an iteration below which growth is not called a leak (a list of scalar losses is not why memory ran out)."""


@dataclass(frozen=True, kw_only=True)
class Leak:
    """Growth of requested bytes from iteration to iteration."""

    bytes_per_iteration: int
    """Mean over the whole iterations after the first."""
    iterations: int
    """Whole iterations seen."""
    stack: Stack
    """The stack that most of what stayed alive was allocated by (the forward's, for what backward allocates)."""
    module: str


def find_leak(timeline: Timeline, until: int | None = None) -> Leak | None:
    """Return the leak that shows before event ``until`` (None: the end), if there is one.

    An iteration counts as whole once events of the next one follow; the last whole iteration must have ended with
    more held bytes than the one before it, and so on back to the first. Most of what they ended with more must
    still be alive right before ``until``: what is given up before the failure is no reason for it.
    """
    ends = _iteration_ends(timeline, until)
    if len(ends) < MIN_ITERATIONS:
        return None
    floors = timeline.held[ends]
    growth = np.diff(floors)
    mean = int(growth.sum()) // len(growth)
    if (growth <= 0).any() or mean < MIN_GROWTH:
        return None
    rows = _survivors(timeline, ends, until)
    if 2 * int(timeline.lifetimes.size[rows].sum()) < floors[-2] - floors[0]:
        return None
    stack_id, module_id = _heaviest(timeline, rows)
    trace = timeline.trace
    return Leak(
        bytes_per_iteration=mean, iterations=len(ends), stack=trace.stacks[stack_id], module=trace.modules[module_id]
    )


def _iteration_ends(timeline: Timeline, until: int | None) -> Indices:
    """Return the last event of each whole iteration, in order; iteration numbers must rise."""
    trace = timeline.trace
    iterations = np.array([moment.iteration for moment in trace.moments])[trace.moment_id[:until]]
    known = np.flatnonzero(iterations >= 0)
    if not len(known) or (np.diff(iterations[known]) < 0).any():
        return np.zeros(0, dtype=np.int64)
    changes = np.flatnonzero(np.diff(iterations[known]) > 0)
    return known[changes]


def _survivors(timeline: Timeline, ends: Indices, until: int | None) -> Indices:
    """Return the blocks that outlived a whole iteration after the one of their birth, and are alive before ``until``.

    What is made anew in every iteration, as gradients are, is not among them, nor what the first iteration left.
    """
    table = timeline.lifetimes
    outlived = (table.born > ends[0]) & (table.born <= ends[-2]) & (table.freed > ends[-1])
    return np.flatnonzero(outlived if until is None else outlived & (table.freed >= until))


def _heaviest(timeline: Timeline, rows: Indices) -> tuple[int, int]:
    """Return the stack and module with most bytes among blocks."""
    table, trace = timeline.lifetimes, timeline.trace
    born = table.born[rows]
    stacks = np.where(trace.forward_stack_id[born] > 0, trace.forward_stack_id[born], trace.stack_id[born])
    totals: dict[tuple[int, int], int] = {}
    columns = zip(stacks.tolist(), trace.module_id[born].tolist(), table.size[rows].tolist(), strict=True)
    for stack, module, size in columns:
        totals[stack, module] = totals.get((stack, module), 0) + size
    return max(totals, key=lambda key: totals[key], default=(0, 0))
