"""An emulated allocator that makes the recorded decisions repeats the recording, from wherever it begins."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from oomscope.allocator import AllocatorSettings
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.replay.fidelity import Fidelity, fidelity_of
from oomscope.snapshot.replay.initial_state import recover
from oomscope.snapshot.replay.replay import Device, serve
from oomscope.snapshot.replay.requests import requests_of
from oomscope.snapshot.trace import Action
from oomscope.units import GiB, MiB
from tests.unit.snapshot.cuts import CONFS, STEPS, cut
from tests.unit.snapshot.machine import Machine


def measured(timeline: Timeline, conf: str = "", *, version: str = "2.11", total: int = 4 * GiB) -> Fidelity:
    rules = AllocatorSettings.parse(conf, torch_version=version)
    requests = requests_of(timeline, initial=recover(timeline, rules))
    outcome = serve(requests, rules, Device(total_bytes=total), at_recorded_addresses=True)
    return fidelity_of(timeline, requests, outcome, rules)


@settings(max_examples=80, deadline=None)
@given(STEPS, st.sampled_from(CONFS), st.integers(0, 100))
def test_a_recording_cut_anywhere_is_repeated_exactly(steps, conf, at):
    recording = cut(steps, conf, at)
    assume(not recover(recording.timeline, AllocatorSettings.parse(conf)).doubts)
    found = measured(recording.timeline, conf)
    assert found.share == 1
    assert found.mismatches == ()
    assert found.recorded == found.emulated == found.matched
    assert found.is_exact
    assert found.first_divergence is None


@settings(max_examples=40, deadline=None)
@given(STEPS, st.sampled_from(CONFS), st.sampled_from(("2.11", "2.12", "2.13")))
def test_a_whole_recording_is_repeated_under_the_rules_of_every_version(steps, conf, version):
    recording = cut(steps, conf, 0, torch_version=version)
    assert measured(recording.timeline, conf, version=version).is_exact


def test_what_other_settings_do_is_listed_on_both_sides():
    machine = Machine(4 * GiB)
    machine.alloc(3 * MiB)
    found = measured(Timeline.of(machine.trace(), machine.segments()), "large_segment_size_mb:40")
    assert (found.recorded, found.emulated, found.matched, found.share) == (1, 1, 0, 0)
    assert [(row.recorded, row.action, row.size, row.event) for row in found.mismatches] == [
        (True, "segment_alloc", 20 * MiB, 1),
        (False, "segment_alloc", 40 * MiB, 1),
    ]
    assert {row.reason for row in found.mismatches} == {"unexplained"}


def test_a_file_without_segment_events_is_named_as_the_reason():
    machine = Machine(4 * GiB)
    machine.alloc(3 * MiB)
    trace = machine.trace()
    silent = replace(trace, action=trace.action.copy())
    silent.action[silent.action == Action.SEGMENT_ALLOC] = Action.SNAPSHOT
    found = measured(Timeline.of(silent, ()))
    assert found.share == 0
    assert found.mismatches[0].reason.startswith("the block lies in no segment of the file")


def test_what_follows_from_a_block_that_lies_elsewhere_says_so():
    machine = Machine(4 * GiB, "max_split_size_mb:32")
    machine.free(machine.alloc(100 * MiB))
    machine.alloc(50 * MiB)
    machine.alloc(44 * MiB)
    found = measured(Timeline.of(machine.trace(), machine.segments()))
    assert found.first_divergence is not None
    reasons = {row.event > found.first_divergence: row.reason for row in found.mismatches}
    assert reasons[True] == f"follows from event {found.first_divergence}, whose block lies elsewhere than recorded"
