"""Whether the sizes that a program asks for depend on values that a virtual card does not compute.

A read from a virtual card of bytes that nobody copied there is answered by a rule. Such a run is repeated under
another rule: where the two ask the allocator for the same sizes in the same order, the values did not matter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oomscope.snapshot.trace import Action, Stack, Trace
from oomscope.units import format_size


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The first request in which two runs differ; bytes. None stands for a run that made no further request."""

    requested_bytes: int | None
    """In the run that is reported."""
    other_bytes: int | None
    """In the run under the other rule."""
    stack: Stack
    """Where it was made: in the run that is reported, unless that made none."""
    module: str = ""

    def __str__(self) -> str:
        """Say what was asked for, without the line."""
        one, other = (_said(size) for size in (self.requested_bytes, self.other_bytes))
        return f"{one} under the one rule, {other} under the other"


def first_difference(reported: Trace, other: Trace) -> Difference | None:
    """Return the first request of two runs of one device that differs in size; None where all are the same.

    Requests that were refused count as well. Both traces are whole: none of their events was dropped.
    """
    ours, theirs = _requests(reported), _requests(other)
    common = min(len(ours), len(theirs))
    differing = np.flatnonzero(reported.size[ours[:common]] != other.size[theirs[:common]])
    place = int(differing[0]) if len(differing) else common
    if place >= len(ours) and place >= len(theirs):
        return None
    trace, rows = (reported, ours) if place < len(ours) else (other, theirs)
    event = int(rows[place])
    return Difference(
        requested_bytes=int(reported.size[ours[place]]) if place < len(ours) else None,
        other_bytes=int(other.size[theirs[place]]) if place < len(theirs) else None,
        stack=trace.stacks[trace.forward_stack_id[event] or trace.stack_id[event]],
        module=trace.modules[trace.module_id[event]],
    )


def _requests(trace: Trace) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    return np.flatnonzero((trace.action == Action.ALLOC) | (trace.action == Action.OOM))


def _said(size: int | None) -> str:
    return "nothing more" if size is None else format_size(size)
