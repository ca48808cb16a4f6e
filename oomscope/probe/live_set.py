"""What is live at an event, by category and by line. Every table sums to the live requested bytes at that event."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from oomscope.probe.result import Site, SiteBytes
from oomscope.probe.sites import SiteRule
from oomscope.snapshot.lifetimes import BEFORE
from oomscope.snapshot.timeline import Timeline
from oomscope.snapshot.trace import Category

UNATTRIBUTED = Site(file="", line=0, function="(no Python line recorded)")
"""The row of what no stack was recorded for."""


def bytes_by_category(timeline: Timeline, event: int) -> dict[str, int]:
    """Return the live requested bytes right after ``event`` by category label, largest first."""
    table, rows = timeline.lifetimes, timeline.live_at(event)
    born, size = table.born[rows], table.size[rows]
    category = np.where(born == BEFORE, int(Category.UNKNOWN), timeline.trace.category[born])
    present = [Category(value) for value in np.unique(category).tolist()]
    totals = {value.label: int(size[category == value].sum()) for value in present}
    return dict(sorted(totals.items(), key=lambda item: -item[1]))


def bytes_by_site(timeline: Timeline, event: int, rule: SiteRule) -> tuple[SiteBytes, ...]:
    """Return the live requested bytes right after ``event`` by line, module and category, largest first.

    What was allocated in backward counts for the forward line that caused it, where that is known.
    """
    table, trace = timeline.lifetimes, timeline.trace
    totals: defaultdict[tuple[int, int, int], list[int]] = defaultdict(lambda: [0, 0])
    for row in timeline.live_at(event):
        born = int(table.born[row])
        if born == BEFORE:
            key = (0, 0, int(Category.UNKNOWN))
        else:
            stack = int(trace.forward_stack_id[born]) or int(trace.stack_id[born])
            key = (stack, int(trace.module_id[born]), int(trace.category[born]))
        total = totals[key]
        total[0] += int(table.size[row])
        total[1] += 1
    return _merged(timeline, totals, rule)


def _merged(timeline: Timeline, totals: dict[tuple[int, int, int], list[int]], rule: SiteRule) -> tuple[SiteBytes, ...]:
    """Add up stacks that stand for the same line."""
    trace = timeline.trace
    lines: defaultdict[tuple[Site, str], list[int]] = defaultdict(lambda: [0, 0])
    for (stack, module, category), (size, number) in totals.items():
        site = rule.site_of(trace.stacks[stack], trace.modules[module]) or UNATTRIBUTED
        line = lines[site, Category(category).label]
        line[0] += size
        line[1] += number
    rows = [
        SiteBytes(site=site, bytes=size, count=number, category=category)
        for (site, category), (size, number) in lines.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.bytes, str(row.site), row.category)))
