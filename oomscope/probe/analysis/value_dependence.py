"""Whether a run on a virtual card can be believed: what it read of the card that the card does not know.

A read of bytes that nobody copied to the card is answered by a rule. Such a run is repeated under another rule: where
the two ask the allocator for the same sizes in the same order, the values did not matter. Only that is an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from oomscope.probe.analysis.sites import SiteRule, site_rule
from oomscope.probe.job import ProbeJob
from oomscope.probe.measurement import Ending, Measurement
from oomscope.probe.result import Failure
from oomscope.snapshot.trace import Action, Frame, Stack, Trace
from oomscope.units import format_size

REMEDY: Final = "use --backend cuda, or compute these values on the host"
_MOST_LINES: Final = 3


def is_doubtful(measurement: Measurement) -> bool:
    """Return whether the target read what the card does not know."""
    return measurement.unanswered.reads > 0


def unchecked(job: ProbeJob, measurement: Measurement) -> Failure:
    """Return what is said of a run that was not repeated, for it stays unknown whether the values mattered."""
    return Failure(
        kind="untestable", message=f"{_read(job, measurement)}; it is not known whether sizes depend on them; {REMEDY}"
    )


def doubt_of(job: ProbeJob, measurement: Measurement, repeated: Callable[[], Ending | None]) -> Failure | str:
    """Return why ``measurement`` cannot be believed, or, where it can, the note that says how that was found out.

    Args:
        job: what was measured.
        measurement: a run that read what the card does not know.
        repeated: runs the target whole once more, under the other rule of values.
    """
    ending = repeated()
    other = ending.measurement if ending is not None else None
    if other is None:
        why = ending.failure.message if ending is not None and ending.failure is not None else "its process was lost"
        return Failure(
            kind="untestable",
            message=f"{_read(job, measurement)}, and under other values the run fails: {why}; {REMEDY}",
        )
    if measurement.truncated or other.truncated:
        return unchecked(job, measurement)
    found = first_difference(measurement.trace, other.trace)
    if found is None and (moved := _peak_that_moved(measurement, other)):
        return Failure(
            kind="untestable",
            message=f"{_read(job, measurement)}, and under other values {moved}; {REMEDY}",
        )
    if found is None:
        return f"{_read(job, measurement)}; repeated under other values, the run asked for the same bytes"
    site = site_rule(job).site_of(found.stack, found.module)
    place = f" at {site.file}:{site.line} {site.function}" if site else ""
    return Failure(
        kind="untestable",
        message=(
            "what it asks the card for depends on values that a virtual card does not compute: "
            f"{found}{place}; {REMEDY}"
        ),
    )


def _peak_that_moved(measurement: Measurement, other: Measurement) -> str:
    """Return which peak differs between two runs that asked for the same; empty where none does.

    Values may decide when memory is given back, and what another process of the target asks for.
    """
    for name in ("requested", "allocated", "reserved"):
        one, two = (getattr(each.stats, f"{name}_bytes_peak") for each in (measurement, other))
        if one != two:
            return f"the {name} peak is {format_size(two)} instead of {format_size(one)}"
    if measurement.other_peaks != other.other_peaks:
        return "another process of the program allocates other bytes"
    return ""


def _read(job: ProbeJob, measurement: Measurement) -> str:
    """Return how often what was read, and where."""
    seen, rule = measurement.unanswered, site_rule(job)
    times = "once" if seen.reads == 1 else f"{seen.reads:,} times"
    places = dict.fromkeys(_place(rule, line) for line in seen.lines)
    shown = ", ".join(list(places)[:_MOST_LINES])
    more = " and elsewhere" if len(places) > _MOST_LINES else ""
    return f"values that a virtual card does not compute were read {times}" + (f" (at {shown}{more})" if shown else "")


def _place(rule: SiteRule, line: Frame) -> str:
    return f"{rule.name_of(line.filename)}:{line.line}"


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
