"""A snapshot replayed: rows that can be compared, and what the file cannot tell."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from oomscope.errors import AllocatorConfError, SnapshotError, UsageError
from oomscope.snapshot.event_fields import FREE_UNKNOWN
from oomscope.snapshot.judge.verdict import judge
from oomscope.snapshot.replay.fixes import CANDIDATES, Rules, try_settings
from oomscope.snapshot.replay.initial_state import recover
from oomscope.snapshot.replay.recording import recording_of
from oomscope.snapshot.replay.replay import Device
from oomscope.snapshot.replay.replay_table import AFRESH, replay_file
from oomscope.snapshot.replay.requests import Last, requests_of
from oomscope.snapshot.timeline import Timeline
from oomscope.snapshot.trace import Action, Snapshot
from oomscope.units import GiB, MiB
from tests.unit.snapshot.cases import freed_by_the_last_wait
from tests.unit.snapshot.cuts import STEPS, cut, tail
from tests.unit.snapshot.machine import Machine


def snapshot_of(machine: Machine, start: int = 0) -> Snapshot:
    return Snapshot(segments=machine.segments(), traces=(tail(machine.trace(), start),))


def fragmented(total: int = 4 * GiB) -> Machine:
    """Return a machine of ten segments of 20 MiB, each pinned by a block of 8 MiB, of which 100 MiB is asked last."""
    machine = pinned(total)
    machine.alloc(100 * MiB)
    return machine


def pinned(total: int) -> Machine:
    machine = Machine(total, torch_version="2.11")
    blocks = [machine.alloc(8 * MiB) for _ in range(20)]
    for block in blocks[::2]:
        machine.free(block)
    return machine


@settings(max_examples=25, deadline=None)
@given(STEPS, st.integers(0, 100))
def test_no_row_reserves_less_than_is_live(steps, at):
    recording = cut(steps, "", at)
    assume(len(recording.timeline.trace))
    table = replay_file(recording.snapshot, confs=CANDIDATES[:2])
    for row in table.rows:
        assert row.survives
        assert row.peak_reserved_bytes >= table.requested_peak_bytes
        assert row.largest_overhead_bytes >= 0
        assert row.margin_bytes is None
    assert table.planned_bytes >= table.requested_peak_bytes
    assert {caveat.code for caveat in table.caveats} >= {"no_card"}


def test_rows_say_what_each_setting_reserves_and_wastes():
    table = replay_file(snapshot_of(fragmented()), confs=["expandable_segments:True"])
    recorded, expandable = table.rows
    assert table.requested_peak_bytes == 180 * MiB
    assert (recorded.name, recorded.peak_reserved_bytes, recorded.segments) == ("as recorded", 300 * MiB, 11)
    assert (expandable.name, expandable.peak_reserved_bytes) == ("expandable_segments:True", 260 * MiB)
    assert (recorded.overhead_bytes, expandable.overhead_bytes) == (120 * MiB, 80 * MiB)
    assert (recorded.largest_overhead_bytes, expandable.largest_overhead_bytes) == (120 * MiB, 80 * MiB)
    assert table.fidelity.is_exact
    assert (table.torch_version, table.version_source) == ("2.11", "found")
    assert table.planned_bytes == 180 * MiB


def test_a_limit_makes_requests_fail_and_gives_margins():
    table = replay_file(snapshot_of(fragmented()), confs=["expandable_segments:True"], limit=295 * MiB)
    recorded, expandable = table.rows
    assert not recorded.survives
    assert recorded.failed_event is not None
    assert recorded.overhead_bytes is None
    assert recorded.margin_bytes == -5 * MiB
    assert recorded.retries == 1
    assert table.available_bytes == 295 * MiB
    assert expandable.survives
    assert expandable.margin_bytes == 35 * MiB
    assert replay_file(snapshot_of(fragmented()), limit=296 * MiB, non_torch=MiB).available_bytes == 295 * MiB


def test_a_failure_shows_the_card():
    table = replay_file(snapshot_of(fragmented(295 * MiB)), confs=[])
    assert table.fidelity.share == 1
    assert table.available_bytes == 295 * MiB


def test_a_recording_that_ends_in_a_failure_fails_as_recorded():
    machine = fragmented(295 * MiB)
    last = len(machine.trace()) - 1
    recorded, expandable = replay_file(snapshot_of(machine), confs=["expandable_segments:True"]).rows
    assert recorded.failed_event == last
    assert recorded.margin_bytes < 0
    assert expandable.survives
    assert expandable.peak_reserved_bytes == 260 * MiB, "what was refused is served"
    larger = replay_file(snapshot_of(machine), confs=[], limit=GiB).rows[0]
    assert larger.survives


def test_a_failure_that_the_program_survives_ends_no_replay():
    machine = fragmented(295 * MiB)
    machine.alloc(MiB)
    assert replay_file(snapshot_of(machine), confs=[]).rows[0].survives


def test_a_failure_while_a_stream_was_waited_for_is_read_as_such():
    machine = freed_by_the_last_wait()
    assert replay_file(snapshot_of(machine), confs=[]).rows[0].failed_event == len(machine.trace()) - 1


def test_of_devices_that_recorded_as_much_the_one_that_failed_is_replayed():
    fine, failed = Machine(100 * MiB), Machine(100 * MiB)
    for machine in (fine, failed):
        machine.alloc(60 * MiB)
    failed.alloc(60 * MiB)
    traces = (fine.trace(), replace(failed.trace(), device=1))
    assert replay_file(Snapshot(segments=(), traces=traces), confs=[]).device == 1


def without_free_bytes(machine: Machine) -> Snapshot:
    """Return the machine's recording, its failures silent on what was free."""
    trace = machine.trace()
    address = np.where(trace.action == Action.OOM, np.uint64(FREE_UNKNOWN), trace.address)
    return Snapshot(segments=machine.segments(), traces=(replace(trace, address=address),))


def test_a_card_bounded_by_a_failure_alone_is_not_said_to_serve_everything():
    machine = Machine(100 * MiB)
    machine.alloc(60 * MiB)
    machine.alloc(60 * MiB)
    table = replay_file(without_free_bytes(machine), confs=[])
    assert not table.rows[0].survives
    assert table.available_bytes is None
    [text] = [caveat.text for caveat in table.caveats if caveat.code == "no_card"]
    assert text.endswith("it counts as the largest on which the failed request fails, 120.00 MiB")


def test_of_several_refusals_the_lowest_bounds_the_card():
    machine = Machine(100 * MiB)
    machine.free(machine.alloc(60 * MiB))
    machine.free(machine.alloc(70 * MiB))
    machine.alloc(90 * MiB)
    machine.alloc(20 * MiB)
    snapshot = without_free_bytes(machine)
    timeline = Timeline.of(snapshot.traces[0], snapshot.segments)
    budget = recording_of(snapshot, timeline).budget
    assert budget.available_bytes is None, "a bound is not the card"
    assert budget.is_upper_bound
    assert budget.device.available_bytes == 110 * MiB - 1


def test_a_card_with_nothing_held_and_nothing_free():
    machine = Machine(MiB)
    machine.alloc(60 * MiB)
    trace = machine.trace()
    nothing_free = replace(trace, address=np.zeros(len(trace), dtype=np.uint64))
    table = replay_file(Snapshot(segments=(), traces=(nothing_free,)), confs=[])
    assert table.available_bytes == 0
    assert table.rows[0].margin_bytes == -60 * MiB
    with pytest.raises(UsageError, match="a card of 0 bytes serves nothing"):
        replay_file(snapshot_of(fragmented()), limit=0)


def test_a_refusal_shows_how_small_the_card_is():
    machine = Machine(100 * MiB, torch_version="2.11")
    machine.free(machine.alloc(60 * MiB))
    machine.alloc(70 * MiB)
    table = replay_file(snapshot_of(machine), confs=[])
    assert table.fidelity.is_exact
    assert table.available_bytes == 130 * MiB - 1
    assert "refused" in table.available_source
    assert table.rows[0].retries == 1


def test_settings_that_begin_afresh_have_a_row_to_compare_with():
    machine = fragmented()
    table = replay_file(snapshot_of(machine, start=30), confs=["expandable_segments:True", "max_split_size_mb:64"])
    assert [(row.name, row.begun_afresh) for row in table.rows] == [
        ("as recorded", False),
        (AFRESH, True),
        ("expandable_segments:True", True),
        ("max_split_size_mb:64", False),
    ]
    assert "older_blocks" in {caveat.code for caveat in table.caveats}
    assert table.fidelity.is_exact


def test_a_whole_recording_begins_afresh_anyway():
    rows = replay_file(snapshot_of(fragmented()), confs=["expandable_segments:True"]).rows
    assert [row.begun_afresh for row in rows] == [False, False]


def test_a_cure_that_packing_alone_gives_is_not_claimed():
    machine = pinned(295 * MiB)
    start = len(machine.builder)
    machine.alloc(100 * MiB)
    trace = tail(machine.trace(), start)
    failure = replace(machine.failure, event=machine.failure.event - start)
    timeline = Timeline.of(trace, machine.segments())
    rules = Rules(torch_version="2.11")
    last = Last(failure.event, failure.requested_bytes)
    requests = requests_of(timeline, last, initial=recover(timeline, rules.settings()))
    tried = try_settings(requests, rules, machine.device, candidates=["expandable_segments:True"])
    assert [row.survives for row in tried.rows] == [False, True]
    assert tried.control.survives
    assert tried.is_undecided
    assert tried.cures == ()
    assert tried.rows[1].saved_bytes == tried.control.peak_reserved_bytes - tried.rows[1].peak_reserved_bytes
    verdict = judge(trace, machine.device, rules=rules, segments=machine.segments(), failure=failure)
    assert (verdict.kind, verdict.uncured, verdict.cured_by) == ("fragmentation", False, ())
    assert verdict.tags == ("undecided",)
    assert "not on the setting" in verdict.headline


@pytest.mark.parametrize(("conf", "is_said"), [("max_split_size_mb:64", False), ("expandable_segments:True", True)])
def test_how_a_setting_begins_afresh_is_said_of_those_that_do(conf, is_said):
    table = replay_file(snapshot_of(fragmented(), 30), confs=[conf])
    [text] = [caveat.text for caveat in table.caveats if caveat.code == "older_blocks"]
    assert ("packed afresh" in text) == is_said
    assert "all that was held then" in text


def test_what_was_cached_before_is_not_called_saved():
    machine = Machine(4 * GiB, torch_version="2.11")
    machine.free(machine.alloc(500 * MiB))
    start = len(machine.builder)
    machine.empty_cache()
    machine.alloc(20 * MiB)
    timeline = Timeline.of(tail(machine.trace(), start), machine.segments())
    requests = requests_of(timeline, initial=recover(timeline, Rules().settings()))
    tried = try_settings(requests, Rules(), machine.device, candidates=["expandable_segments:True"])
    assert [row.peak_reserved_bytes for row in tried.rows] == [500 * MiB, 20 * MiB]
    assert [row.saved_bytes for row in tried.rows] == [0, 0]
    assert tried.rows[1].note.endswith("begun so, the recorded settings reserve 20.00 MiB")


def test_a_switch_during_the_recording_is_said():
    machine = Machine(4 * GiB, torch_version="2.11")
    machine.alloc(30 * MiB)
    machine.allocator.set_settings("expandable_segments:True")
    machine.alloc(50 * MiB)
    table = replay_file(snapshot_of(machine), confs=[])
    assert table.conf == "expandable_segments:True"
    assert "settings_changed" in {caveat.code for caveat in table.caveats}
    assert {row.reason for row in table.fidelity.mismatches} == {
        "expandable segments were switched during the recording"
    }


def test_a_device_too_small_for_what_was_held_begins_afresh():
    machine = Machine(4 * GiB, torch_version="2.11")
    machine.free(machine.alloc(500 * MiB))
    start = len(machine.builder)
    machine.alloc(20 * MiB)
    timeline = Timeline.of(tail(machine.trace(), start), machine.segments())
    requests = requests_of(timeline, initial=recover(timeline, Rules().settings()))
    tried = try_settings(requests, Rules(), Device(total_bytes=100 * MiB), candidates=())
    assert tried.baseline.peak_reserved_bytes == 20 * MiB
    assert tried.afresh == (True,)


def test_settings_that_began_afresh_anyway_need_no_second_row():
    machine = Machine(4 * GiB, torch_version="2.11")
    machine.free(machine.alloc(500 * MiB))
    start = len(machine.builder)
    machine.alloc(20 * MiB)
    table = replay_file(snapshot_of(machine, start), confs=["expandable_segments:True"], limit=100 * MiB)
    assert [(row.name, row.begun_afresh) for row in table.rows] == [
        ("as recorded", True),
        ("expandable_segments:True", True),
    ]


def test_an_ill_formed_setting_is_refused_with_torchs_column():
    with pytest.raises(AllocatorConfError, match=r"PYTORCH_ALLOC_CONF, column 21: .*'True' or 'False'"):
        replay_file(snapshot_of(fragmented()), confs=["expandable_segments:Maybe"])


def test_devices_are_chosen_by_number_or_by_what_they_recorded():
    snapshot = snapshot_of(fragmented())
    assert replay_file(snapshot, confs=[], with_plan=False).planned_bytes is None
    assert replay_file(snapshot, device=0, confs=[]).devices == (0,)
    with pytest.raises(UsageError, match="no trace of device 3; it has those of 0"):
        replay_file(snapshot, device=3)


def test_without_a_trace_there_is_nothing_to_replay():
    with pytest.raises(SnapshotError, match="holds no trace"):
        replay_file(Snapshot(segments=(), traces=()))


def test_the_document_is_plain_json():
    document = replay_file(snapshot_of(fragmented()), confs=["expandable_segments:True"]).to_json()
    assert json.loads(json.dumps(document)) == json.loads(json.dumps(document, allow_nan=False))
    assert document["schema_version"] == 2
    assert document["fidelity"]["share"] == 1.0
    assert [row["name"] for row in document["rows"]] == ["as recorded", "expandable_segments:True"]


def test_steps_are_announced():
    steps: list[str] = []
    replay_file(snapshot_of(fragmented()), confs=["expandable_segments:True"], announce=steps.append)
    assert steps == ["fidelity", "expandable_segments:True", "offline plan"]
