"""Where a recording tells no phases and categories they are inferred; none of it is derived unasked, nor twice."""

from __future__ import annotations

import numpy as np

from oomscope.snapshot.compare.side import Side
from oomscope.snapshot.explain.analysis import Analysis
from oomscope.snapshot.infer.inferred import Inferred
from oomscope.snapshot.trace import Category, Moment, Snapshot
from oomscope.units import GiB, MiB

from .foreign import Training
from .machine import Machine


def foreign() -> Snapshot:
    """A recording of somebody's: stacks alone tell of what it did."""
    job = Training()
    job.build()
    for _ in range(4):
        job.step()
    return Snapshot(segments=job.segments(), traces=(job.trace(),))


def test_what_the_recording_does_not_say_is_inferred():
    snapshot = foreign()
    found = Inferred(snapshot, snapshot.traces[0])
    assert not any(moment.phase for moment in found.bare.trace.moments)
    assert {"forward", "backward", "optimizer"} <= {row.phase for row in found.timeline.phase_peaks()}
    assert len(found.iterations) == 4
    assert (found.timeline.requested == found.bare.requested).all()
    told = set(np.unique(found.evidence.category).tolist())
    assert {Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE} <= told


def test_what_the_recording_says_counts():
    machine = Machine(GiB)
    machine.moment = Moment("warm-up", 7, 0)
    machine.alloc(MiB, category=Category.WORKSPACE)
    snapshot = Snapshot(segments=machine.segments(), traces=(machine.trace(),))
    found = Inferred(snapshot, snapshot.traces[0])
    assert [row.phase for row in found.timeline.phase_peaks() if row.phase] == ["warm-up"]
    assert found.evidence.category.tolist() == [Category.WORKSPACE]


def test_explain_and_diff_infer_the_same():
    snapshot = foreign()
    trace = snapshot.traces[0]
    one, other = Analysis(snapshot, trace, None, None, 0), Side(snapshot, trace)
    assert one.timeline.phase_peaks() == other.timeline.phase_peaks()
    assert (one.evidence.category == other.evidence.category).all()


def test_nothing_is_derived_before_it_is_asked_for_and_then_once():
    snapshot = foreign()
    found = Inferred(snapshot, snapshot.traces[0])
    assert vars(found).keys() == {"snapshot", "recorded"}
    assert found.timeline is found.timeline
    assert "evidence" not in vars(found)
