"""Where the events and the segments of a file are not of one piece, every byte of the difference has a reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.snapshot.accounting.discrepancies import Cause
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.trace import Action, Block, Segment, Trace
from tests.trace_builder import TraceBuilder
from tests.unit.snapshot.strategies import recordings


def trace_of(*events: tuple[Action, int, int]) -> Trace:
    builder = TraceBuilder()
    for action, address, size in events:
        builder.event(action, address, size)
    return builder.build()


def segment(*blocks: tuple[int, int, str], address: int = 0, counter: int = -1) -> Segment:
    return Segment(
        device=0,
        address=address,
        total_size=4096,
        stream=0,
        segment_type="small",
        is_expandable=False,
        blocks=tuple(
            Block(address=address + offset, size=1024, requested_size=size, state=state)
            for offset, size, state in blocks
        ),
        requested_counter=counter,
    )


LIVE = "active_allocated"
ALLOC, FREE, DONE = Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED


@pytest.mark.parametrize(
    ("events", "held", "cause", "blocks", "size", "difference"),
    [
        pytest.param(
            [(ALLOC, 1024, 700)],
            segment((1024, 700, "inactive")),
            *(Cause.FREE_NOT_RECORDED, 1, 700, 700),
            id="freed after the last event",
        ),
        pytest.param(
            [(ALLOC, 0, 10), (ALLOC, 1 << 20, 700)],
            segment((0, 10, LIVE)),
            *(Cause.FREE_NOT_RECORDED, 1, 700, 700),
            id="a segment that is not there",
        ),
        pytest.param(
            [(ALLOC, 0, 700), (FREE, 0, 700), (DONE, 0, 700)],
            segment((0, 900, LIVE)),
            *(Cause.ALLOC_NOT_RECORDED, 1, 900, -900),
            id="allocated after the last event",
        ),
        pytest.param(
            [(Action.SEGMENT_ALLOC, 0, 4096)],
            segment((1024, 900, LIVE)),
            *(Cause.ALLOC_NOT_RECORDED, 1, 900, -900),
            id="in a segment that is younger than the recording",
        ),
        pytest.param(
            [(ALLOC, 0, 700)],
            segment((0, 1000, LIVE)),
            *(Cause.SIZES_DIFFER, 1, 300, -300),
            id="two sizes of one block",
        ),
        pytest.param(
            [(ALLOC, 0, 700), (ALLOC, 0, 800)],
            segment((0, 800, LIVE)),
            *(Cause.EVENTS_CONTRADICT, 1, 800, 0),
            id="allocated twice",
        ),
        pytest.param(
            [(ALLOC, 0, 700)],
            segment((0, 700, LIVE), counter=900),
            *(Cause.COUNTERS_DIFFER, 1, 200, 0),
            id="counters that were made up",
        ),
    ],
)
def test_each_cause_is_reported_with_its_bytes(events, held, cause, blocks, size, difference):
    found = Timeline.of(trace_of(*events), (held,)).reconciliation
    (reason,) = found.reasons
    assert (reason.cause, reason.blocks, reason.bytes) == (cause, blocks, size)
    assert reason.difference_bytes == found.difference_bytes == difference
    assert reason.to_json()["cause"] == str(cause)
    assert str(reason).startswith(f"{blocks} ")


def test_a_block_that_came_after_the_trace_is_in_no_curve():
    trace = trace_of((ALLOC, 0, 700), (FREE, 0, 700), (DONE, 0, 700))
    timeline = Timeline.of(trace, (segment((0, 900, LIVE), (2048, 50, LIVE)),))
    assert timeline.held.tolist() == [750, 50, 50]
    assert timeline.lifetimes.later.tolist() == [0]


@given(recordings())
def test_what_one_allocator_recorded_has_no_discrepancies(recording):
    trace, segments, _ = recording
    assert Timeline.of(trace, segments).reconciliation.reasons == ()


@given(recordings(), recordings(), st.integers(0, 3))
def test_the_reasons_sum_to_the_difference_whatever_was_put_together(one, other, kept):
    found = Timeline.of(one[0], one[1][:kept] + other[1][kept:]).reconciliation
    assert sum(reason.difference_bytes for reason in found.reasons) == found.difference_bytes
    assert bool(found.reasons) or found.difference_bytes == 0
