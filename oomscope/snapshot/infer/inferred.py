"""One device of a snapshot with what is inferred of it, each thing once and only when it is asked for.

Nothing here is specific to a source of snapshots: categories, phases and iterations come from the recording where it
has them and from evidence where it does not.

A foreign trace with what evidence tells of it: the phase and iteration of each event. A trace that tells its own
moments keeps them. What reads moments (peaks by phase, the search for leaks, the place of a peak) then works on
anybody's snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from oomscope.snapshot.builder import UNKNOWN_MOMENT, Interned
from oomscope.snapshot.infer.activity import Activity, Doing, activity_of
from oomscope.snapshot.infer.categorise import Evidence, categorise
from oomscope.snapshot.infer.category_rules import Confidence
from oomscope.snapshot.infer.iterations import Iterations, iterations_of
from oomscope.snapshot.infer.life import numbered
from oomscope.snapshot.timeline import Timeline
from oomscope.snapshot.trace import Moment, Snapshot, Trace

PHASES: Final = {
    Doing.UNKNOWN: "",
    Doing.FORWARD: "forward",
    Doing.BACKWARD: "backward",
    Doing.OPTIMIZER: "optimizer",
    Doing.ZERO_GRAD: "zero_grad",
}


def with_moments(trace: Trace, activity: Activity, iterations: Iterations) -> Trace:
    """Return ``trace`` with a phase and an iteration at each event, as far as they are known.

    Iterations count from the beginning of the recording; without a known end none has a number, nor where the ends
    are a guess: rhythm may take two iterations as one, and no rate rests on that.
    """
    if trace.moment_id.any():
        return trace
    are_sure = len(iterations) and iterations.confidence > Confidence.LOW
    numbers = np.searchsorted(iterations.ends, np.arange(len(trace))) if are_sure else np.full(len(trace), -1)
    moments: Interned[Moment] = Interned(UNKNOWN_MOMENT)
    _, first, place = np.unique(numbered(activity.at, numbers), return_index=True, return_inverse=True)
    pairs = zip(activity.at[first].tolist(), numbers[first].tolist(), strict=True)
    ids = [moments.id_of(Moment(PHASES[Doing(doing)], number, -1)) for doing, number in pairs]
    column = np.array(ids, dtype=np.int32)[place] if ids else trace.moment_id
    return replace(trace, moment_id=column, moments=moments.items())


@dataclass(frozen=True)
class Inferred:
    """One device of a snapshot.

    Args:
        snapshot: what was recorded.
        recorded: the events of the device.
    """

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
        """The curves, with moments told by evidence where the recording has none."""
        return replace(self.bare, trace=with_moments(self.recorded, self.activity, self.iterations))

    @cached_property
    def evidence(self) -> Evidence:
        """What each block is for."""
        return categorise(self.bare, self.activity)
