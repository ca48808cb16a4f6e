"""The plan of segments has a place for every byte that is reserved."""

from __future__ import annotations

import pytest

from oomscope.allocator import AllocatorSettings
from oomscope.snapshot.explain.drawing import floor_plan
from oomscope.snapshot.replay.segment_map import SegmentMap, segments_after
from oomscope.snapshot.sites import Site
from oomscope.snapshot.timeline import Timeline
from oomscope.units import GiB, MiB

from .machine import Machine

HERE = Site(file="here.py", line=1, function="f")


@pytest.fixture
def machine() -> Machine:
    """Segments with a gap, a block that waits for a stream, and one without any block."""
    machine = Machine(GiB)
    first, *_ = [machine.alloc(5 * MiB) for _ in range(3)]
    waiting = machine.alloc(30 * MiB)
    machine.use_on(waiting, 7)
    machine.free(waiting)
    machine.free(first)
    machine.free(machine.alloc(50 * MiB))
    return machine


def test_blocks_and_gaps_fill_their_segments(machine: Machine):
    timeline = Timeline.of(machine.trace(), machine.segments())
    here = segments_after(timeline, len(timeline.trace) - 1, AllocatorSettings.parse(""))
    plan = floor_plan(here, lambda row: (HERE, f"row {row}"))
    assert plan is not None
    assert plan.reserved_bytes == here.reserved_bytes
    for segment in plan.segments:
        at = segment.address
        for block in segment.blocks:
            assert block.address == at
            at += block.size
        assert at == segment.address + segment.size
        assert segment.unused == sum(block.size for block in segment.blocks if block.site is None)
    unused = [segment.unused for segment in plan.segments]
    assert unused == sorted(unused, reverse=True)
    blocks = [block for segment in plan.segments for block in segment.blocks]
    assert [block.size for block in blocks if block.is_pending] == [30 * MiB]
    assert sum(block.requested for block in blocks) == 40 * MiB
    assert len({block.category for block in blocks if block.site}) == 3


def test_segments_that_are_not_known_have_no_plan():
    here = SegmentMap(event=3, segments=(), row_at={}, is_known=False, is_exact=False)
    assert floor_plan(here, lambda row: (HERE, "")) is None
