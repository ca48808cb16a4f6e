"""Who asked for memory to be given back: the program, or a request that the driver refused."""

from __future__ import annotations

import pytest

from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.replay.releases import Release, capacity_of, releases_of
from oomscope.snapshot.replay.requests import Kind, requests_of
from oomscope.snapshot.trace import Action, Frame
from oomscope.units import MiB
from tests.trace_builder import TraceBuilder
from tests.unit.snapshot.machine import Machine

CALLER = (Frame("/user/train.py", 7, "step"),)
OTHER = (Frame("/user/train.py", 9, "main"),)
PYTHON = (Frame("/x/torch/cuda/memory.py", 1, "empty_cache"),)
CPP = (Frame("CUDACachingAllocator.cpp", 1, "c10::cuda::CUDACachingAllocator::Native::emptyCache()"),)


def recorded(*events) -> Timeline:
    """Return a timeline of events, each an action, MiB and a stack; segments lie 1 GiB apart."""
    builder = TraceBuilder()
    for action, size, stack in events:
        builder.event(action, size * MiB << 10, size * MiB, 0, 0, stack)
    return Timeline.of(builder.build())


@pytest.mark.parametrize(
    ("freed_by", "taken_by", "refused"),
    [(CALLER, CALLER, True), (CALLER, OTHER, False), (PYTHON, CALLER, False), (CPP, CPP, False)],
)
def test_stacks_show_who_released_memory(freed_by, taken_by, refused):
    timeline = recorded(
        (Action.SEGMENT_ALLOC, 40, OTHER),
        (Action.SEGMENT_FREE, 40, freed_by),
        (Action.SEGMENT_ALLOC, 60, taken_by),
        (Action.ALLOC, 60, taken_by),
    )
    assert releases_of(timeline) == (Release(event=1, end=2, refused=refused),)
    assert capacity_of(timeline) == (100 * MiB - 1 if refused else None)


@pytest.mark.parametrize(("size", "refused"), [(50, False), (51, True)])
def test_without_stacks_a_request_beyond_what_was_ever_held_was_refused(size, refused):
    timeline = recorded(
        (Action.SEGMENT_ALLOC, 100, ()),
        (Action.SEGMENT_ALLOC, 60, ()),
        (Action.SEGMENT_FREE, 50, ()),
        (Action.ALLOC, 1, ()),
        (Action.SEGMENT_FREE, 60, ()),
        (Action.SEGMENT_ALLOC, size, ()),
    )
    assert [release.refused for release in releases_of(timeline)] == [False, refused]


def test_released_memory_that_no_request_uses_was_released_on_request():
    timeline = recorded(
        (Action.SEGMENT_ALLOC, 40, ()),
        (Action.SEGMENT_FREE, 40, ()),
        (Action.SNAPSHOT, 0, ()),
        (Action.SEGMENT_FREE, 40, ()),
    )
    assert releases_of(timeline) == (Release(event=1, end=4, refused=False),)


def test_a_failure_reports_what_was_free():
    machine = Machine(100 * MiB)
    machine.free(machine.alloc(60 * MiB))
    machine.alloc(120 * MiB)
    timeline = Timeline.of(machine.trace(), machine.segments())
    (release,) = releases_of(timeline)
    assert release.refused
    assert capacity_of(timeline) == 100 * MiB


def test_emptying_the_cache_is_a_request():
    machine = Machine(100 * MiB)
    machine.free(machine.alloc(60 * MiB))
    machine.empty_cache()
    requests = requests_of(Timeline.of(machine.trace(), machine.segments()))
    assert requests.kind.tolist() == [Kind.MALLOC, Kind.FREE, Kind.EMPTY_CACHE]
