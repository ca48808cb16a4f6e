"""Gives a trace's blocks their categories afterwards, from what was told of addresses while the program ran.

On CUDA an allocation does not say what it is for. What is told (this storage is a parameter) names an address and a
time; the block that held the address then is found in the trace. The rest follows from lifetimes: what outlives the
forward pass that made it is an activation, what does not outlive its phase is a temporary.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from oomscope.snapshot.lifetimes import BEFORE, Lifetimes
from oomscope.snapshot.timeline import Timeline
from oomscope.snapshot.trace import Category, Moment, Trace

_FORWARD = {"forward", "loss"}


class Told(NamedTuple):
    """Somebody said what a storage is for."""

    address: int
    time_us: int
    category: Category


def categorise(timeline: Timeline, told: Iterable[Told]) -> Trace:
    """Return the timeline's trace with the categories of its alloc events filled in.

    Categories that the trace already has are kept. A trace without times takes what was told of an address for
    its last block.
    """
    trace, table = timeline.trace, timeline.lifetimes
    category = trace.category.copy()
    unknown = category == Category.UNKNOWN
    for row, kind in _told_blocks(trace, table, told).items():
        if unknown[table.born[row]]:
            category[table.born[row]] = kind
    for row in np.flatnonzero(table.born != BEFORE).tolist():
        born = int(table.born[row])
        if category[born] == Category.UNKNOWN:
            category[born] = _by_lifetime(trace, born, int(table.freed[row]))
    return replace(trace, category=category)


def _told_blocks(trace: Trace, table: Lifetimes, told: Iterable[Told]) -> dict[int, Category]:
    """Return the blocks that were spoken of; what was said last of a block stands."""
    rows_at: defaultdict[int, list[int]] = defaultdict(list)
    for row in np.argsort(table.born, kind="stable").tolist():
        if table.born[row] != BEFORE:
            rows_at[int(table.address[row])].append(row)
    found: dict[int, Category] = {}
    for address, time_us, kind in told:
        rows = rows_at.get(address, [])
        times = [int(trace.time_us[table.born[row]]) for row in rows]
        position = bisect_right(times, time_us) - 1
        if position >= 0:
            found[rows[position]] = kind
    return found


def _by_lifetime(trace: Trace, born: int, freed: int) -> Category:
    moment = trace.moments[trace.moment_id[born]]
    if freed >= len(trace):
        return Category.UNKNOWN
    ended = trace.moments[trace.moment_id[freed]]
    if _same_phase(moment, ended):
        return Category.TEMPORARY
    return Category.ACTIVATION if moment.phase in _FORWARD else Category.UNKNOWN


def _same_phase(first: Moment, second: Moment) -> bool:
    return bool(first.phase) and first == second
