"""Lines that leave memory at a steady rate, also where what is live at the end of an iteration goes up and down.

Lengths of batches vary, and a list may be added to in every fifth iteration only. What tells a leak from the rest then
is that blocks of one line stay, that none of them is ever freed later, and that as much stays in the last quarter of
the iterations as in those before. A queue gives up its oldest blocks, a buffer that is full and states that are made
once stop, and a cache that fills slows down. One by sizes that is far from full does not, so blocks are not called a
leak where no size comes again in another iteration.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from oomscope.snapshot.accounting.lifetimes import Indices
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.infer.activity import Mark, StackReader
from oomscope.snapshot.infer.life import Mask, numbered
from oomscope.snapshot.trace import Category

MIN_LEAVING: Final = 5
"""Least iterations that must have left something."""
QUARTERS: Final = 4
MIN_ITERATIONS: Final = 2 * QUARTERS
"""Least iterations after the first from which a rate is seen."""
MIN_SHARE: Final = 0.5
"""Share of the average quarter's bytes that each quarter must have left at least."""

Key = tuple[int, int, int]
"""Stack, forward stack and module of an allocation."""


def steadily_left(timeline: Timeline, ends: Indices, until: int | None) -> dict[Key, int]:
    """Return, by stack, forward stack and module, the bytes that were left at a steady rate and are alive at ``until``.

    Iterations are told by their last events. The first does not count: it may make what stays.
    """
    windows = len(ends) - 1
    if windows < MIN_ITERATIONS:
        return {}
    table, trace = timeline.lifetimes, timeline.trace
    rows = np.flatnonzero((table.born > ends[0]) & (table.born <= ends[-1]) & ~_of_optimizers(timeline))
    born, freed, size = table.born[rows], table.freed[rows], table.size[rows]
    window = np.searchsorted(ends, born) - 1
    following = np.append(ends, np.iinfo(np.int64).max)[window + 2]
    stays = (freed > ends[-1]) & (freed >= (len(trace) if until is None else until))
    freed_later = ~stays & (freed > following)
    columns = trace.stack_id[born], trace.forward_stack_id[born], trace.module_id[born]
    group = numbered(*columns)
    found: dict[Key, int] = {}
    for number in np.unique(group[stays]).tolist():
        own = group == number
        kept = own & stays
        if not (own & freed_later).any() and _is_steady(window[kept], size[kept], windows):
            first = int(np.flatnonzero(own)[0])
            stack, forward, module = (int(column[first]) for column in columns)
            found[stack, forward, module] = int(size[kept].sum())
    return found


def _is_steady(window: Indices, size: Indices, windows: int) -> bool:
    """Whether blocks of these iterations and sizes were left at one rate throughout, and not once for each size."""
    sizes_of_iterations = np.unique(np.stack((window, size)), axis=1)
    if len(np.unique(window)) < MIN_LEAVING or len(np.unique(size)) == sizes_of_iterations.shape[1]:
        return False
    quarters = np.bincount(window * QUARTERS // windows, weights=size, minlength=QUARTERS)
    return bool(quarters.min() >= MIN_SHARE * quarters.mean())


def _of_optimizers(timeline: Timeline) -> Mask:
    """Return which blocks a step of an optimizer made: states come as parameters come to be trained."""
    table, trace = timeline.lifetimes, timeline.trace
    read = StackReader()
    in_step = np.array([bool(read(stack)[1] & (Mark.OPTIMIZER | Mark.STATE_INIT)) for stack in trace.stacks])
    inside = table.born >= 0
    found = np.zeros(len(table), dtype=bool)
    born = table.born[inside]
    found[inside] = in_step[trace.stack_id[born]] | (trace.category[born] == Category.OPTIMIZER_STATE)
    return found
