"""A snapshot replayed: rows that can be compared, and what the file cannot tell."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from oomscope.errors import AllocatorConfError, SnapshotError, UsageError
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.judge.verdict import judge
from oomscope.snapshot.replay.fixes import CANDIDATES, Rules, try_settings
from oomscope.snapshot.replay.initial_state import recover
from oomscope.snapshot.replay.replay_table import REPACKED, replay_file
from oomscope.snapshot.replay.requests import Last, requests_of
from oomscope.snapshot.trace import Snapshot
from oomscope.units import GiB, MiB
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
        assert row.peak_reserved_bytes >= table.peak_requested_bytes
        assert row.margin_bytes is None
    assert {caveat.code for caveat in table.caveats} >= {"no_card"}


def test_rows_say_what_each_setting_reserves_and_wastes():
    table = replay_file(snapshot_of(fragmented()), confs=["expandable_segments:True"])
    recorded, expandable = table.rows
    assert table.peak_requested_bytes == 180 * MiB
    assert (recorded.name, recorded.peak_reserved_bytes, recorded.segments) == ("as recorded", 300 * MiB, 11)
    assert (expandable.name, expandable.peak_reserved_bytes) == ("expandable_segments:True", 260 * MiB)
    assert (recorded.overhead_bytes, expandable.overhead_bytes) == (120 * MiB, 80 * MiB)
    assert table.fidelity.is_exact
    assert (table.torch_version, table.version_source) == ("2.11", "found")
    document = json.loads(json.dumps(table.to_json(), allow_nan=False))
    assert (document["schema_version"], document["fidelity"]["share"]) == (3, 1.0)
    assert [row["name"] for row in document["rows"]] == ["as recorded", "expandable_segments:True"]


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


def test_what_cannot_be_replayed_is_a_caveat():
    with pytest.raises(UsageError, match="a card of 0 bytes serves nothing"):
        replay_file(snapshot_of(fragmented()), limit=0)
    with pytest.raises(UsageError, match="no trace of device 3; it has those of 0"):
        replay_file(snapshot_of(fragmented()), device=3)
    with pytest.raises(SnapshotError, match="holds no trace"):
        replay_file(Snapshot(segments=(), traces=()))


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


def test_a_refusal_shows_how_small_the_card_is():
    machine = Machine(100 * MiB, torch_version="2.11")
    machine.free(machine.alloc(60 * MiB))
    machine.alloc(70 * MiB)
    table = replay_file(snapshot_of(machine), confs=[])
    assert table.fidelity.is_exact
    assert table.available_bytes == 130 * MiB - 1
    assert "refused" in table.available_source
    assert table.rows[0].retries == 1


def at_the_brink() -> Machine:
    """Of a card of 1000 MiB 940 are reserved when a request is refused and cached memory given back for it."""
    machine = Machine(1000 * MiB, torch_version="2.11")
    machine.alloc(300 * MiB)
    for size in (200, 210, 230):
        machine.free(machine.alloc(size * MiB))
    machine.alloc(600 * MiB)
    return machine


def test_settings_are_replayed_on_the_least_card_that_refusals_leave_possible():
    table = replay_file(snapshot_of(at_the_brink()))
    assert table.fidelity.is_exact
    assert table.available_is_bound
    assert (table.replayed_bytes, table.available_bytes) == (940 * MiB, 1540 * MiB - 1)
    assert table.rows[0].retries == 1
    assert all(row.peak_reserved_bytes <= 940 * MiB for row in table.rows)
    assert "with 940.00 MiB" in next(each.text for each in table.caveats if each.code == "bounded_card")


def test_settings_that_begin_afresh_have_a_row_to_compare_with():
    machine = fragmented()
    table = replay_file(snapshot_of(machine, start=30), confs=["expandable_segments:True", "max_split_size_mb:64"])
    assert [(row.name, row.begun_afresh) for row in table.rows] == [
        ("as recorded", False),
        (REPACKED, True),
        ("expandable_segments:True", True),
        ("max_split_size_mb:64", False),
    ]
    assert "older_blocks" in {caveat.code for caveat in table.caveats}
    assert table.fidelity.is_exact


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
    verdict = judge(Timeline.of(trace, machine.segments()), machine.device, rules=rules, failure=failure)
    assert (verdict.kind, verdict.uncured, verdict.cured_by) == ("fragmentation", False, ())
    assert verdict.tags == ("undecided",)
    assert "not on the setting" in verdict.headline


def test_a_switch_during_the_recording_is_a_caveat():
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


def test_an_ill_formed_setting_is_refused_with_torchs_column():
    with pytest.raises(AllocatorConfError, match=r"setting expandable_segments:Maybe, column 21: .*'True' or 'False'"):
        replay_file(snapshot_of(fragmented()), confs=["expandable_segments:Maybe"])
