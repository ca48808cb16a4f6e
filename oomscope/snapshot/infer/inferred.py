"""One device of a snapshot with what is inferred of it, each thing once and only when it is asked for.

Categories, phases and iterations come from the recording where it has them and from evidence where it does not, so
that what reads them (peaks by phase, the search for leaks, the place of a peak) works on anybody's snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from oomscope.snapshot.accounting.lifetimes import BEFORE, Indices
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.accounting.timeline import iterations_of as recorded_iterations
from oomscope.snapshot.infer.activity import Activity, Phase, activity_of
from oomscope.snapshot.infer.annotated import AnnotatedEnds, annotated_ends
from oomscope.snapshot.infer.categorise import Evidence, categorise
from oomscope.snapshot.infer.category_rules import Confidence
from oomscope.snapshot.interned import Interned, counted
from oomscope.snapshot.trace import UNKNOWN_MOMENT, Annotation, Moment, Snapshot, Trace


@dataclass(frozen=True, kw_only=True)
class Iterations:
    """The iterations that a recording shows."""

    ends: Indices
    """Last events of the iterations that are known to have ended, in order; the first may have begun before the
    recording."""
    source: str = "unknown"
    """Source of the iterations: ``recorded``, ``annotations``, ``optimizer steps`` or ``unknown``."""
    confidence: Confidence = Confidence.NONE

    def __len__(self) -> int:
        return len(self.ends)


NO_ENDS: Final = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Inferred:
    """One device of a snapshot."""

    snapshot: Snapshot
    recorded: Trace

    @cached_property
    def bare(self) -> Timeline:
        """The curves as recorded."""
        return Timeline.of(self.recorded, self.snapshot.segments)

    @cached_property
    def activity(self) -> Activity:
        """What the program did at each event."""
        return activity_of(self.bare, self.snapshot.annotations)

    @cached_property
    def iterations(self) -> Iterations:
        """Where iterations end."""
        return iterations_of(self.bare, self.activity, self.snapshot.annotations)

    @cached_property
    def timeline(self) -> Timeline:
        """The curves, with inferred moments where the recording has none."""
        return self.bare.at_moments_of(with_moments(self.recorded, self.activity, self.iterations))

    @cached_property
    def evidence(self) -> Evidence:
        """What each block is for."""
        return categorise(self.bare, self.activity)


def with_moments(trace: Trace, activity: Activity, iterations: Iterations) -> Trace:
    """Return ``trace`` with the phase and iteration of each event, where they are known.

    Numbers that are recorded without phases, as by ``oomscope record``, are kept. Else iterations count from the
    beginning of the recording; without a known end none has a number.
    """
    if any(moment.phase for moment in trace.moments):
        return trace
    numbers = _numbers(trace, iterations)
    moments: Interned[Moment] = Interned(UNKNOWN_MOMENT)
    phases = {doing: doing.name.lower() for doing in Phase} | {Phase.UNKNOWN: ""}
    used, place = counted((numbers + 1) * len(Phase) + activity.at)
    pairs = (divmod(each, len(Phase)) for each in used)
    ids = [moments.id_of(Moment(phases[Phase(doing)], number - 1, -1)) for number, doing in pairs]
    return replace(trace, moment_id=np.array(ids, dtype=np.int32)[place], moments=moments.items())


def _numbers(trace: Trace, iterations: Iterations) -> Indices:
    """Return the iteration of each event, -1 where it is not known.

    PyTorch keeps ``user_metadata`` for each thread, so events of autograd's own threads go on with the iteration of the
    last event that has one.
    """
    if iterations.source == "recorded":
        recorded = recorded_iterations(trace)
        return np.where(recorded < 0, recorded[recorded >= 0][0], recorded)
    if not len(iterations):
        return np.full(len(trace), -1)
    return np.searchsorted(iterations.ends, np.arange(len(trace)))


def iterations_of(timeline: Timeline, activity: Activity, annotations: Sequence[Annotation] = ()) -> Iterations:
    """Return the iterations of a trace, from the surest source that shows at least two ends."""
    sources: tuple[tuple[str, Confidence, Callable[[], AnnotatedEnds]], ...] = (
        ("recorded", Confidence.CERTAIN, lambda: AnnotatedEnds(_recorded(timeline))),
        ("annotations", Confidence.HIGH, lambda: annotated_ends(timeline.trace, annotations)),
        ("optimizer steps", Confidence.HIGH, lambda: AnnotatedEnds(_after_steps(timeline, activity))),
    )
    for source, confidence, find in sources:
        ends, is_sure = find()
        if len(ends) > 1:
            return Iterations(ends=ends, source=source, confidence=confidence if is_sure else Confidence.MEDIUM)
    return Iterations(ends=NO_ENDS)


def _recorded(timeline: Timeline) -> Indices:
    trace = timeline.trace
    numbers = np.array([moment.iteration for moment in trace.moments])[trace.moment_id]
    known = np.flatnonzero(numbers >= 0)
    change = np.diff(numbers[known])
    return known[1:][change > 0] - 1 if len(known) and (change >= 0).all() else NO_ENDS


def _after_steps(timeline: Timeline, activity: Activity) -> Indices:
    """Return the last events of the runs that are an optimizer step.

    A step in which the recording ends has ended where it allocates as often as the one before it that did so least.
    """
    stepping = np.append(activity.at == Phase.OPTIMIZER, False)
    ends = np.flatnonzero(stepping[:-1] & ~stepping[1:])
    if not len(ends) or ends[-1] < len(activity.at) - 1:
        return ends
    born = timeline.lifetimes.born[activity.own == Phase.OPTIMIZER]
    allocations = np.bincount(np.searchsorted(ends, born[born != BEFORE]), minlength=len(ends))
    return ends if len(ends) > 1 and allocations[-1] >= allocations[:-1].min() else ends[:-1]
