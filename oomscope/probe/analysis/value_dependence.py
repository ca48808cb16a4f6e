"""Whether a run on a virtual card can be believed: what it read of the card that the card does not know.

A read of bytes that nobody copied to the card is answered by a rule. Such a run is repeated under another rule: where
the two ask the allocator for the same sizes in the same order, the values did not matter. Only that is an answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from oomscope.probe.analysis.sites import site_rule
from oomscope.probe.job import ProbeJob
from oomscope.probe.measurement import Ending, Measurement
from oomscope.probe.result import Failure
from oomscope.snapshot.trace import Action, Frame, Stack, Trace
from oomscope.units import format_size

REMEDY: Final = "use --backend cuda, or compute these values on the host"
_MOST_LINES: Final = 3


def unchecked(job: ProbeJob, measurement: Measurement) -> Failure:
    """Return what is said of a run that was not repeated, for it stays unknown whether the values mattered."""
    return _untestable(f"{_read(job, measurement)}; it is not known whether sizes depend on them")


def doubt_of(job: ProbeJob, measurement: Measurement, repeated: Callable[[], Ending | None]) -> Failure | str:
    """Return why ``measurement`` cannot be believed, or, where it can, the note that says how that was found out.

    Args:
        job: what was measured.
        measurement: a run that read what the card does not know.
        repeated: runs the target whole once more, under the other rule of values.
    """
    ending = repeated()
    other = ending.measurement if ending is not None else None
    read = _read(job, measurement)
    if other is None:
        why = ending.failure.message if ending is not None and ending.failure is not None else "its process was lost"
        return _untestable(f"{read}, and a second run with other values fails: {why}")
    if measurement.truncated or other.truncated:
        return unchecked(job, measurement)
    found = first_difference(measurement.trace, other.trace)
    if found is not None:
        site = site_rule(job).site_of(found.stack, found.module)
        place = f" at {site.file}:{site.line} {site.function}" if site else ""
        return _untestable(f"{read}, and a second run with other values asks for {found}{place}")
    note = f"{read}; a second run with other values asked for the same bytes"
    moved = _moved_peaks(measurement, other)
    if list(moved) == ["reserved"] and _threads_take_other_turns(measurement.trace, other.trace):
        return f"{note}, but {moved['reserved']}: threads of the program allocate in another order each time"
    return _untestable(f"{read}, and in a second run with other values {next(iter(moved.values()))}") if moved else note


def _untestable(message: str) -> Failure:
    return Failure(kind="untestable", message=f"{message}; {REMEDY}")


def _moved_peaks(measurement: Measurement, other: Measurement) -> dict[str, str]:
    """Return what differs between two runs that asked for the same: what is said of it, by the peak's name.

    Values may decide when memory is given back, and what another process of the target asks for.
    """
    moved = {}
    for name in ("requested", "allocated", "reserved"):
        one, two = (getattr(each.stats, f"{name}_bytes_peak") for each in (measurement, other))
        if one != two:
            moved[name] = f"the {name} peak is {format_size(two)} instead of {format_size(one)}"
    if measurement.other_peaks != other.other_peaks:
        moved["others"] = "another process of the program allocates other bytes"
    return moved


def _read(job: ProbeJob, measurement: Measurement) -> str:
    """Return how often what was read, and where."""
    seen, rule = measurement.unanswered, site_rule(job)
    times = "once" if seen.reads == 1 else f"{seen.reads:,} times"
    places = places_of(seen.lines, rule.name_of)
    return f"values that a virtual card does not compute were read {times}{f' ({places})' if places else ''}"


def places_of(lines: Sequence[Frame], name: Callable[[str], str]) -> str:
    """Return "at" and the first of the lines, their files as ``name`` calls them; empty without any."""
    places = list(dict.fromkeys(f"{name(line.filename)}:{line.line}" for line in lines))
    more = " and elsewhere" if len(places) > _MOST_LINES else ""
    return f"at {', '.join(places[:_MOST_LINES])}{more}" if places else ""


class Difference(NamedTuple):
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
        sizes = (self.requested_bytes, self.other_bytes)
        one, other = ("nothing more" if size is None else format_size(size) for size in sizes)
        return f"{other} instead of {one}"


def first_difference(reported: Trace, other: Trace) -> Difference | None:
    """Return the first request of two runs of one device that differs in size; None where all are the same.

    Requests that were refused count as well. Those of threads that the program started take turns in an order of their
    own in each run: of each of their stacks the sizes are compared, not the order. Both traces are whole: none of their
    events was dropped.
    """
    ours, theirs = _Requests(reported), _Requests(other)
    common = min(len(ours.ordered), len(theirs.ordered))
    differing = np.flatnonzero(reported.size[ours.ordered[:common]] != other.size[theirs.ordered[:common]])
    place = int(differing[0]) if len(differing) else common
    if place < max(len(ours.ordered), len(theirs.ordered)):
        trace, rows = (reported, ours.ordered) if place < len(ours.ordered) else (other, theirs.ordered)
        event = int(rows[place])
        return Difference(
            requested_bytes=int(reported.size[ours.ordered[place]]) if place < len(ours.ordered) else None,
            other_bytes=int(other.size[theirs.ordered[place]]) if place < len(theirs.ordered) else None,
            stack=trace.stacks[trace.forward_stack_id[event] or trace.stack_id[event]],
            module=trace.modules[trace.module_id[event]],
        )
    our_sizes, their_sizes = ours.sizes_of_threads(), theirs.sizes_of_threads()
    for stack in our_sizes | their_sizes:
        one, two = our_sizes.get(stack, Counter()), their_sizes.get(stack, Counter())
        if one != two:
            return Difference(min(one - two, default=None), min(two - one, default=None), stack)
    return None


class _Requests:
    """The requests of a run."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        rows = np.flatnonzero((trace.action == Action.ALLOC) | (trace.action == Action.OOM))
        is_threads = np.array([_is_of_started_thread(stack) for stack in trace.stacks])[trace.stack_id[rows]]
        self.ordered = rows[~is_threads]
        """Their events, without those of threads that the program started."""
        self.of_threads = rows[is_threads]
        self.turns = np.stack((trace.size[rows], is_threads))
        """The size of each, and whether it is such a thread's."""

    def sizes_of_threads(self) -> dict[Stack, Counter[int]]:
        sizes: dict[int, Counter[int]] = {}
        for row in self.of_threads:
            sizes.setdefault(int(self._trace.stack_id[row]), Counter())[int(self._trace.size[row])] += 1
        return {self._trace.stacks[stack]: counts for stack, counts in sizes.items()}


def _threads_take_other_turns(reported: Trace, other: Trace) -> bool:
    """Whether threads that the program started make the same requests in another order."""
    return not np.array_equal(_Requests(reported).turns, _Requests(other).turns)


def _is_of_started_thread(stack: Stack) -> bool:
    return bool(stack) and (stack[-1].name, Path(stack[-1].filename).name) == ("_bootstrap", "threading.py")
