"""What the iteration that failed would still have needed, by the last one that was recorded whole.

A recording ends at its failure. Where the allocations of the iteration so far repeat those of the one before it, size
by size, that one tells what was to come. What has been added since, such as the states that an optimizer makes in its
first step, is live beside it. The result is no more than what must have been needed: blocks that an earlier iteration
left and that may be let go count as gone.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from oomscope.snapshot.accounting.lifetimes import Indices
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.trace import Category
from oomscope.snapshot.verdict_types import RestOfIteration

STAYING: Final = (Category.PARAMETER, Category.OPTIMIZER_STATE)
"""Categories that are made once and kept for good."""
LEAST_ALIKE: Final = 3
"""Least allocations of the iteration that failed, the failed one included."""
MOST_STARTS: Final = 1000
"""Most places in the first iteration that are tried as the beginning of its loop."""


def rest_of_iteration(
    timeline: Timeline, ends: Indices, category: NDArray[np.int8], failed: int
) -> RestOfIteration | None:
    """Return what the iteration that failed at the ``oom`` event ``failed`` needs in all; None where nothing shows it.

    ``ends`` are the last events of whole iterations, ``category`` is that of each row of the lifetimes.
    """
    table, ends = timeline.lifetimes, ends[ends < failed]
    if not len(ends):
        return None
    begin, end = int(ends[-2]) if len(ends) > 1 else -1, int(ends[-1])
    alive = (table.born < failed) & (table.freed >= failed)
    stays = alive & np.isin(category, STAYING)
    last = _in_order(table.born, (table.born > begin) & (table.born <= end))
    now = _in_order(table.born, (table.born > end) & (table.born < failed))
    sizes = [*table.size[now].tolist(), int(timeline.trace.size[failed])]
    if len(sizes) < LEAST_ALIKE:
        return None
    reached = _reached(table.size[last].tolist(), alive[last].tolist(), sizes, is_first=len(ends) == 1)
    if reached is None:
        return None
    # Workspaces of the first iteration may be those in which a library looks for its fastest algorithm, once.
    of_once = category == Category.WORKSPACE if len(ends) == 1 else np.zeros(len(table), dtype=bool)
    own = last[~(stays | of_once)[last]]
    is_kept = alive & (table.born <= end)
    is_kept[own] = False
    point = int(table.born[last[reached]])
    change = np.zeros(end + 2, dtype=np.int64)
    np.add.at(change, table.born[own], table.size[own])
    np.subtract.at(change, np.minimum(table.freed[own], end + 1), table.size[own])
    most = int(np.cumsum(change)[point : end + 1].max())
    needed = int(table.size[is_kept].sum()) + most
    live = int(table.size[alive].sum())
    return RestOfIteration(needed_bytes=needed) if needed > live else None


def _in_order(born: Indices, chosen: NDArray[np.bool_]) -> Indices:
    rows = np.flatnonzero(chosen)
    return rows[np.argsort(born[rows], kind="stable")]


def _reached(last: list[int], may_be_new: list[bool], sizes: list[int], *, is_first: bool) -> int | None:
    """Return which allocation of the last whole iteration is the one that failed; None where they do not agree.

    Of a first iteration it is not known where its loop begins, so the latest place that agrees counts. Blocks that are
    still alive (``may_be_new``) may have been made in it alone.
    """
    starts = [at for at, size in enumerate(last) if size == sizes[0]][-MOST_STARTS:] if is_first else [0]
    for start in reversed(starts):
        matched = 0
        for at in range(start, len(last)):
            if last[at] == sizes[matched]:
                matched += 1
                if matched == len(sizes):
                    return at
            elif not may_be_new[at]:
                break
    return None
