"""The pictures of a device: its timeline in no more bins than a reader gets, and the segments where it counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oomscope.snapshot.explain.analysis import Analysis, analyse
from oomscope.snapshot.explain.drawing import draw
from oomscope.snapshot.trace import Category
from oomscope.units import MiB

from .machine import Machine
from .test_explain import snapshot_of


def worked(*, fails: bool) -> Machine:
    """A program whose peak is its third event on, and that ends with less live; or with a request in vain."""
    machine = Machine(64 * MiB)
    machine.alloc(24 * MiB, line=1, category=Category.PARAMETER)
    machine.free(machine.alloc(22 * MiB, line=2))
    machine.alloc(4 * MiB, line=3, category=Category.GRADIENT)
    if fails:
        machine.alloc(60 * MiB, line=4)
    return machine


def analysis(machine: Machine, **asked) -> Analysis:
    [found] = analyse(snapshot_of(machine), file="snap.pickle", **asked)
    return found


@pytest.mark.parametrize("most_bins", [1, 2, 5, 1000])
def test_a_timeline_has_at_most_as_many_bins_and_loses_no_peak(most_bins):
    found = analysis(worked(fails=False))
    bins = draw(found, most_bins).bins
    assert len(bins) <= most_bins
    assert bins.total == len(found.recorded)
    assert bins.all_requested.max() == 46 * MiB
    assert (bins.per_bin == 1) == (most_bins >= bins.total)


def test_segments_are_those_at_the_peak():
    found = analysis(worked(fails=False))
    plan = draw(found).plan
    assert plan.event == found.timeline.peak_event()
    assert live(plan) == {(1, "parameter"): 24 * MiB, (2, "activation"): 22 * MiB}


def test_where_a_request_failed_segments_are_those_then():
    found = analysis(worked(fails=True))
    plan = draw(found).plan
    assert plan.event == found.failure_event
    assert live(plan) == {(1, "parameter"): 24 * MiB, (3, "gradient"): 4 * MiB}


def test_on_a_card_where_an_earlier_request_fails_segments_are_those_at_the_peak():
    """How they would lie on that card is not recorded."""
    found = analysis(worked(fails=False), limit=40 * MiB)
    assert found.cut_short is not None
    assert draw(found).plan.event == found.timeline.peak_event()


def test_without_segments_there_is_no_map():
    machine = worked(fails=False)
    [found] = analyse(replace(snapshot_of(machine), segments=None), file="snap.pickle")
    assert draw(found).plan is None
    assert draw(found).bins.all_requested.max() == 46 * MiB


def live(plan) -> dict[tuple[int, str], int]:
    """Return requested bytes by line and category."""
    blocks = [block for segment in plan.segments for block in segment.blocks if block.category]
    return {(block.site.line, block.category): block.requested for block in blocks}
