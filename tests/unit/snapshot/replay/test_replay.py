"""A replay puts the recorded requests to the allocator: under the recorded settings it does what was recorded."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from oomscope.allocator import AllocatorSettings
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.replay.fixes import CANDIDATES, Rules, try_settings
from oomscope.snapshot.replay.replay import Device, replay
from oomscope.snapshot.replay.requests import Kind, Last, requests_of
from oomscope.snapshot.trace import Action
from oomscope.units import GiB, MiB
from tests.unit.snapshot.cuts import CONFS, SIZES, play
from tests.unit.snapshot.machine import Machine

STEPS = st.lists(
    st.tuples(st.sampled_from(("alloc", "alloc", "free", "use", "synchronize")), SIZES, st.integers(0, 99)),
    max_size=60,
)


def run(machine: Machine, steps) -> None:
    """Play random steps until one fails."""
    held: list[int] = []
    for step in steps:
        if machine.failure is None:
            play(machine, held, *step)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.sampled_from(CONFS))
def test_a_replay_under_the_recorded_settings_does_what_was_recorded(steps, conf):
    machine = Machine(200 * MiB, conf, non_torch=10 * MiB, others=5 * MiB)
    run(machine, steps)
    assume(not machine.waited)
    failure = machine.failure
    timeline = Timeline.of(machine.trace(), machine.segments())
    stream = int(timeline.trace.stream[failure.event]) if failure else 0
    last = Last(failure.event, failure.requested_bytes, stream) if failure else None
    assert timeline.initial_requested_bytes == 0
    outcome = replay(requests_of(timeline, last), AllocatorSettings.parse(conf), machine.device)
    if failure and outcome.survives:
        requests = requests_of(timeline, last, pending_at_last=True)
        outcome = replay(requests, AllocatorSettings.parse(conf), machine.device)
    assert outcome.failed_event == (failure.event if failure else None)
    assert outcome.survives == (failure is None)
    assert outcome.retries == machine.retries
    assert outcome.peak_reserved_bytes == machine.allocator.reserved_peak
    assert outcome.segments == (failure.segments if failure else machine.segments())


@pytest.mark.parametrize("policy", ["bump", "down"])
def test_addresses_go_in_the_order_of_the_recording_where_they_are_not_given(policy):
    """Up to torch 2.11 they decide which of two free blocks of one size serves a request."""
    machine = Machine(GiB, torch_version="2.11", address_policy=policy)
    blocks = [machine.alloc(60 * MiB) for _ in range(2)]
    for address in blocks:
        machine.free(address)
    assert machine.alloc(30 * MiB) == (blocks[0] if policy == "bump" else blocks[1])
    replayed = replay(
        requests_of(Timeline.of(machine.trace())), AllocatorSettings.parse("", torch_version="2.11"), machine.device
    )
    assert replayed.segments == machine.segments()


def test_a_failure_that_the_program_survived_is_asked_again_and_keeps_nothing():
    machine = Machine(100 * MiB)
    assert machine.alloc(200 * MiB) is None
    machine.alloc(20 * MiB)
    requests = requests_of(Timeline.of(machine.trace()))
    assert requests.kind.tolist() == [Kind.TRY, Kind.GIVE_BACK, Kind.MALLOC]
    outcome = replay(requests, AllocatorSettings.parse(""), Device(total_bytes=GiB))
    assert outcome.survives
    assert sum(segment.allocated_size for segment in outcome.segments) == 20 * MiB


def test_frees_pending_on_a_stream_stay_pending_until_the_trace_says_so():
    machine = Machine(GiB)
    block = machine.alloc(30 * MiB)
    machine.use_on(block, 7)
    machine.free(block)
    machine.alloc(30 * MiB)
    machine.synchronize()
    machine.alloc(30 * MiB)
    trace = machine.trace()
    assert trace.action.tolist().count(Action.SEGMENT_ALLOC) == 2
    outcome = replay(requests_of(Timeline.of(trace)), AllocatorSettings.parse(""), machine.device)
    assert outcome.segments == machine.segments()


@given(
    steps=st.lists(st.tuples(st.sampled_from([1, 3, 12, 21, 32, 45]), st.booleans()), min_size=1, max_size=20),
    total=st.integers(5, 120),
    conf=st.sampled_from(["", "expandable_segments:True", "max_split_size_mb:20", "roundup_power2_divisions:8"]),
    fraction=st.sampled_from([None, 0.5]),
)
def test_the_margin_after_a_failure_is_negative(steps, total, conf, fraction):
    machine = Machine(total * MiB, conf, fraction=fraction)
    held = []
    for size, frees in steps:
        if frees and held:
            machine.free(held.pop(0))
        address = machine.alloc(size * MiB)
        if address is None:
            break
        held.append(address)
    assume(machine.failure is not None)
    failure = machine.failure
    requests = requests_of(Timeline.of(machine.trace()), Last(failure.event, failure.requested_bytes))
    outcome = replay(requests, AllocatorSettings.parse(conf), machine.device)
    assert outcome.failed_event == failure.event
    assert outcome.margin_bytes < 0


def test_every_setting_is_tried_but_the_one_already_in_force():
    machine = Machine(GiB)
    machine.alloc(MiB)
    requests = requests_of(Timeline.of(machine.trace()))
    names = [row.name for row in try_settings(requests, Rules(), machine.device).rows]
    assert names == ["as recorded", *CANDIDATES]
    rows = try_settings(requests, Rules(conf="expandable_segments:True"), machine.device).rows
    assert [row.name for row in rows] == ["as recorded", *CANDIDATES[1:]]
    assert all(row.conf.startswith("expandable_segments:True") for row in rows)


def test_where_the_recorded_settings_round_it_is_tried_without():
    machine = Machine(700 * MiB, "roundup_power2_divisions:4")
    while machine.alloc(33 * MiB) is not None:
        pass
    requests = requests_of(Timeline.of(machine.trace()))
    rows = try_settings(requests, Rules(conf=machine.conf), machine.device).rows
    assert [(row.name, row.survives) for row in rows[:3]] == [
        ("as recorded", False),
        ("expandable_segments:True", False),
        ("roundup_power2_divisions:1", True),
    ]
