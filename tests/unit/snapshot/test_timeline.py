"""The curves equal a walk by hand, also where the recording began in the middle."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.snapshot.accounting.timeline import ReservedPeak, Timeline, decimate
from oomscope.snapshot.trace import Action, Block, Moment
from oomscope.units import GiB, MiB
from tests.trace_builder import TraceBuilder
from tests.unit.snapshot.machine import Machine
from tests.unit.snapshot.strategies import recordings, segment


@given(recordings())
def test_requested_bytes_are_exact_at_every_event_wherever_the_recording_began(recording):
    trace, segments, requested = recording
    timeline = Timeline.of(trace, segments)
    assert timeline.requested.tolist() == requested
    assert timeline.reconciliation.difference_bytes == 0
    assert timeline.reconciliation.inconsistent_events == 0
    assert len(timeline.lifetimes.inconsistent_events) == 0


@given(recordings(clean_start=True))
def test_a_complete_recording_needs_no_segments(recording):
    trace, _, requested = recording
    assert Timeline.of(trace).requested.tolist() == requested
    assert Timeline.of(trace).initial_requested_bytes == 0


@given(recordings())
def test_the_blocks_sum_to_the_curves_at_every_event(recording):
    trace, segments, _ = recording
    timeline = Timeline.of(trace, segments)
    table = timeline.lifetimes
    for event in range(-1, len(trace)):
        assert table.size[timeline.requested_at(event)].sum() == timeline.requested_bytes_at(event)
        pending = table.size[table.pending_at(event)].sum()
        assert timeline.held_bytes_at(event) + pending == timeline.requested_bytes_at(event)
        if event >= 0:
            assert timeline.held[event] + pending == timeline.requested[event]


def test_events_that_contradict_each_other_are_counted_and_do_not_break_the_walk():
    builder = TraceBuilder()
    for action in (
        Action.ALLOC,
        Action.ALLOC,  # the first one's free was lost
        Action.FREE_REQUESTED,
        Action.FREE_COMPLETED,
        Action.FREE_COMPLETED,  # an alloc was lost
    ):
        builder.event(action, 4096, 100)
    timeline = Timeline.of(builder.build())
    assert timeline.held.tolist() == [100, 100, 0, 0, 0]
    assert timeline.lifetimes.inconsistent_events.tolist() == [1, 4]


def test_a_block_freed_before_the_recording_is_pending_not_held():
    builder = TraceBuilder()
    builder.event(Action.ALLOC, 4096, 100)
    builder.event(Action.FREE_REQUESTED, 4096, 100)
    builder.event(Action.FREE_COMPLETED, 1 << 20, 50)
    builder.event(Action.FREE_COMPLETED, 4096, 100)
    timeline = Timeline.of(builder.build())
    assert timeline.held.tolist() == [100, 0, 0, 0]
    assert timeline.requested.tolist() == [150, 150, 100, 0]


def test_reserved_is_lifted_by_what_was_there_before():
    builder = TraceBuilder()
    builder.event(Action.SEGMENT_ALLOC, 0, 20)
    builder.event(Action.SEGMENT_MAP, 100, 10)
    builder.event(Action.SEGMENT_FREE, 200, 50)
    builder.event(Action.SEGMENT_UNMAP, 100, 10)
    trace = builder.build()
    assert Timeline.of(trace, (segment(20),)).reserved.tolist() == [70, 80, 30, 20]
    assert Timeline.of(trace).reserved.tolist() == [50, 60, 10, 0]


def test_phase_peaks_join_the_microbatches_of_a_phase():
    builder = TraceBuilder()
    forward, backward = Moment("forward", 0, 0), Moment("backward", 0, 0)
    builder.event(Action.SEGMENT_ALLOC, 0, 1000, moment=forward)
    builder.event(Action.ALLOC, 0, 100, moment=forward)
    builder.event(Action.FREE_COMPLETED, 0, 100, moment=backward)
    builder.event(Action.ALLOC, 0, 300, moment=forward._replace(microbatch=1))
    builder.event(Action.ALLOC, 512, 50, moment=Moment("forward", 1, 0))
    timeline = Timeline.of(builder.build())
    assert [tuple(row) for row in timeline.phase_peaks()] == [
        ("forward", 0, 300, 1000, 3),
        ("backward", 0, 0, 1000, 2),
        ("forward", 1, 350, 1000, 4),
    ]
    assert timeline.peak_event() == 4


def test_a_peak_before_the_first_event_is_found():
    """Of 400 + 600 bytes that were there the first event frees 600, and no more than 500 are asked for again."""
    builder = TraceBuilder()
    builder.event(Action.FREE_COMPLETED, 1024, 600)
    builder.event(Action.SEGMENT_FREE, 1024, 1024)
    builder.event(Action.ALLOC, 512, 500)
    builder.event(Action.FREE_COMPLETED, 512, 500)
    held = segment(1024, Block(address=0, size=512, requested_size=400, state="active_allocated"))
    timeline = Timeline.of(builder.build(), (held,))
    assert timeline.requested.tolist() == [400, 400, 900, 400]
    assert timeline.peak_event() == -1
    assert timeline.requested_bytes_at(timeline.peak_event()) == 1000
    assert [timeline.reserved_bytes_at(event) for event in (-1, 0, 1)] == [2048, 2048, 1024]
    as_much = replace(timeline.trace, size=np.array([600, 1024, 600, 600]))
    assert Timeline.of(as_much, (held,)).peak_event() == 2, "an event that reaches as much has a line"


@given(st.lists(st.integers(0, 2**50), max_size=400))
def test_decimation_keeps_the_peak_and_at_most_120_slices(values):
    curve = np.array(values, dtype=np.int64)
    thinned = decimate(curve)
    assert len(thinned) == min(len(values), 120)
    assert max(thinned, default=0) == max(values, default=0)


@pytest.mark.parametrize(("late", "moment"), [(MiB, "peak"), (200 * MiB, "end")])
def test_overhead_is_that_of_the_fullest_moment_less_a_segment_from_the_most(late, moment):
    """A small segment that comes while little is requested does not turn what is free by then into overhead."""
    machine = Machine(GiB)
    held = [machine.alloc(100 * MiB) for _ in range(4)]
    peak = len(machine.builder) - 1
    for address in held[1:]:
        machine.free(address)
    machine.alloc(late)
    timeline = Timeline.of(machine.trace(), machine.segments())
    highest = timeline.reserved_peak()
    assert highest.reserved_bytes == int(timeline.reserved.max()) > 400 * MiB
    if moment == "peak":
        assert highest == ReservedPeak(peak, 402 * MiB, 400 * MiB, reserved_then_bytes=400 * MiB)
        assert highest.overhead_bytes == 0
    else:
        assert highest == ReservedPeak(len(timeline.trace) - 1, 600 * MiB, 300 * MiB, reserved_then_bytes=600 * MiB)


def test_most_may_be_reserved_before_the_first_event():
    machine = Machine(GiB)
    machine.free(machine.alloc(600 * MiB))
    machine.builder = TraceBuilder()
    machine.empty_cache()
    machine.alloc(100 * MiB)
    timeline = Timeline.of(machine.trace(), machine.segments())
    assert timeline.initial_reserved_bytes == 600 * MiB
    assert timeline.reserved_peak() == ReservedPeak(-1, 600 * MiB, 0, reserved_then_bytes=600 * MiB)
    unknown = Timeline.of(machine.trace())
    assert unknown.initial_reserved_bytes == 600 * MiB, "what is given back was there"
    assert Timeline.of(TraceBuilder().build(), machine.segments()).reserved_peak().reserved_bytes == 100 * MiB
