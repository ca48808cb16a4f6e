"""One device of a snapshot with what is inferred of it, each thing once and only when it is asked for.

Nothing here is specific to a source of snapshots: categories, phases and iterations come from the recording where it
has them and from evidence where it does not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from oomscope.snapshot.infer.activity import Activity, activity_of
from oomscope.snapshot.infer.categorise import Evidence, categorise
from oomscope.snapshot.infer.iterations import Iterations, iterations_of
from oomscope.snapshot.infer.moments import with_moments
from oomscope.snapshot.timeline import Timeline
from oomscope.snapshot.trace import Snapshot, Trace


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
