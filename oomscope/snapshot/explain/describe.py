"""By which line a block was made, and what it is for: what tables and pictures say of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from oomscope.snapshot.attribution import NO_STACK, OLDER
from oomscope.snapshot.infer.categorise import Evidence
from oomscope.snapshot.lifetimes import BEFORE
from oomscope.snapshot.replay.segment_map import stacks_of
from oomscope.snapshot.sites import Site, site_of
from oomscope.snapshot.timeline import Timeline
from oomscope.snapshot.trace import Category, Stack, Trace

Describe: TypeAlias = Callable[[int], tuple[Site, str]]
"""Returns the line and the category of a row of the lifetimes."""


class Describer:
    """Says of a row of the lifetimes by which line it was made, whatever module ran it, and what it is for."""

    def __init__(self, timeline: Timeline, evidence: Evidence) -> None:
        self._timeline = timeline
        self._evidence = evidence
        self._older = stacks_of(timeline, np.flatnonzero(timeline.lifetimes.born == BEFORE))
        self._sites: dict[Stack, Site | None] = {}

    def __call__(self, row: int) -> tuple[Site, str]:
        """Return line and category of ``row``; for what backward allocates the forward's line, where it is known."""
        trace = self._timeline.trace
        born = int(self._timeline.lifetimes.born[row])
        stack = self._older[row] if born == BEFORE else trace.stacks[stack_behind(trace, born)]
        if stack not in self._sites:
            self._sites[stack] = site_of(stack)
        site = self._sites[stack] or (OLDER if born == BEFORE else NO_STACK)
        return site, Category(int(self._evidence.category[row])).label


def stack_behind(trace: Trace, event: int) -> int:
    """Return which stack stands for what was asked for at ``event``: the forward's behind it, where it is known."""
    return int(trace.forward_stack_id[event] or trace.stack_id[event])
