"""What is said of whole snapshots: the answer, the sums, and what the file cannot tell."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oomscope.report.commands.explain_sentences import peak_text, status_text
from oomscope.report.exports.summary import summary_of
from oomscope.report.verdict_text import advice_text
from oomscope.snapshot.compare.diff import Named, diff
from oomscope.snapshot.explain.explanation import DeviceExplanation, Explanation
from oomscope.snapshot.provenance import Card, Provenance
from oomscope.snapshot.replay.replay_table import replay_file
from oomscope.snapshot.trace import Category, Snapshot
from oomscope.units import GiB, MiB
from tests.unit.snapshot.cuts import tail
from tests.unit.snapshot.explained import explain
from tests.unit.snapshot.foreign import BACKWARD, ENGINE, FORWARD, Training
from tests.unit.snapshot.judge.test_verdict import fragmented
from tests.unit.snapshot.machine import Machine
from tests.unit.snapshot.replay.test_replay import CONFS, STEPS, run


def snapshot_of(machine: Machine, **facts) -> Snapshot:
    settings = machine.allocator.settings
    reported = {"PYTORCH_CUDA_ALLOC_CONF": settings.conf, "expandable_segments": settings.expandable_segments}
    facts = {"allocator_settings": reported} | facts
    return Snapshot(segments=machine.segments(), traces=(machine.trace(),), **facts)


def explained(machine: Machine, **asked) -> DeviceExplanation:
    [device] = explain(snapshot_of(machine), file="snap.pickle", **asked).devices
    sums_hold(device)
    return device


def sums_hold(device: DeviceExplanation) -> None:
    for parts in filter(None, (device.composition, device.failure)):
        for rows in (parts.categories, parts.sites, parts.modules, parts.sizes):
            assert sum(row.bytes for row in rows) == parts.bytes
        for row in parts.categories:
            assert sum(row.rules.values()) == row.bytes
    assert device.composition.bytes == device.peak.requested_bytes
    assert device.overhead_at_peak_bytes == device.at_peak.reserved_bytes - device.peak.requested_bytes
    for index, live in enumerate(device.curves.requested):
        assert sum(curve[index] for curve in device.curves.categories.values()) == live
    drawn = max(device.curves.requested, default=device.peak.requested_bytes)
    assert drawn == device.peak.requested_bytes if device.at_peak.event >= 0 else drawn <= device.peak.requested_bytes
    json.dumps(device.to_json(), allow_nan=False)


def test_an_oom_without_a_limit_takes_the_card_from_the_failure():
    machine = fragmented()
    device = explained(machine)
    assert device.verdict.kind == "fragmentation"
    assert device.verdict.cured_by[0] == "expandable_segments:True"
    assert device.available_bytes == GiB
    assert "held and 224.00 MiB free then" in device.available_source
    assert device.failure is not None
    assert device.failure.bytes == device.verdict.live_requested_bytes
    assert device.verdict.categories == {row.category: row.bytes for row in device.failure.categories}
    assert device.pins is not None
    assert device.pins.event == device.verdict.event
    assert device.pins.pinned_bytes == 680 * MiB
    assert {segment.unused_bytes for segment in device.pins.segments} == {170 * MiB}
    assert device.fidelity == 1


def test_a_card_of_which_only_a_bound_is_known_is_not_taken_for_known():
    machine = Machine(1000 * MiB, torch_version="2.11")
    machine.alloc(300 * MiB)
    for size in (200, 210, 230):
        machine.free(machine.alloc(size * MiB))
    machine.alloc(600 * MiB)
    device = explained(machine)
    room = "up to 600.00 MiB to spare of up to 1.50 GiB"
    assert device.available_is_bound
    assert room in status_text(device)
    assert room in device.verdict.headline
    assert {row["margin_bytes"] for row in device.to_json()["tried"]} == {None}
    summary = summary_of(Explanation(file="", devices=(device,)))
    assert (summary["margin_bytes"], summary["available_is_bound"]) == (600 * MiB - 1, True)


def test_a_failure_with_enough_free_shows_a_memory_fraction():
    machine = Machine(4 * GiB, fraction=0.25)
    for _ in range(11):
        machine.alloc(100 * MiB)
    device = explained(machine)
    assert device.verdict.kind == "capacity"
    assert device.available_bytes is not None
    assert GiB <= device.available_bytes < GiB + 100 * MiB
    assert "a memory fraction was in force" in device.available_source
    assert device.verdict.tags == ("fraction",)
    assert "more than the memory fraction that was set allows" in device.verdict.headline
    assert "short" not in device.verdict.headline, "D is an upper bound"
    assert "set_per_process_memory_fraction" in advice_text(device.verdict)
    assert "fraction" not in explained(machine, limit=GiB).verdict.tags


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_a_recording_that_states_the_fraction_gives_the_card(conf):
    machine = Machine(4 * GiB, conf, fraction=0.25)
    for size in (500, 500, 100):
        machine.alloc(size * MiB)
    free = 4 * GiB - machine.allocator.reserved_bytes
    card = Card(index=0, total_bytes=4 * GiB, free_bytes=free, memory_fraction=0.25)
    told = replace(snapshot_of(machine), provenance=Provenance(cards=(card,)))
    [device] = explain(told, file="snap.pickle").devices
    assert device.available_bytes == GiB
    assert device.verdict.kind == "capacity"
    assert device.verdict.tags == ("fraction",)
    assert not device.verdict.available_is_bound
    assert device.fidelity == 1
    assert device.available_source.startswith("the memory fraction in force, 0.25 of")
    larger = replace(card, memory_fraction=0.75)
    [device] = explain(replace(told, provenance=Provenance(cards=(larger,))), file="snap.pickle").devices
    assert device.verdict.available_is_bound, "that one would not have refused"


def test_the_limit_that_the_user_gives_counts_before_the_file():
    device = explained(fragmented(), limit=2 * GiB, non_torch=GiB // 2)
    assert device.available_bytes == 2 * GiB - GiB // 2
    assert "512.00 MiB of it outside PyTorch" in device.available_source


def test_a_failure_is_not_judged_against_a_card_that_serves_it():
    machine = fragmented()
    device = explained(machine, limit=80 * GiB)
    assert device.verdict.kind == "headroom"
    assert device.failure is None
    assert device.verdict.headline.startswith(
        "The failed request of 300.00 MiB would succeed, with 1.07 GiB reserved of 80.00 GiB available"
    )
    assert "what would have come after it is unknown" in device.verdict.headline
    assert {fix.survives for fix in device.verdict.tried} == {True}
    assert device.served == (300 * MiB, device.served.live_bytes, GiB, None)
    assert explained(machine, limit=700 * MiB).served is None
    assert explained(machine).served is None


def test_no_cure_is_shown_by_replays_that_do_not_repeat_the_recording():
    unlike = snapshot_of(fragmented(), allocator_settings={"expandable_segments": True})
    [device] = explain(unlike, file="snap.pickle").devices
    assert device.fidelity < 0.95
    assert device.verdict.kind == "fragmentation"
    assert device.verdict.cured_by == device.verdict.tried == ()
    assert not device.verdict.uncured
    assert device.verdict.headline.endswith(
        "The replay does not reproduce the recording, so no setting is shown to help"
    )


@pytest.mark.parametrize(
    ("stack", "phase", "iteration"), [(FORWARD, "forward", 3), (BACKWARD, "backward", 3), (ENGINE, "backward", 3)]
)
def test_the_failed_request_is_of_its_own_phase_and_iteration(stack, phase, iteration):
    job = trained()
    if stack is not FORWARD:
        job.make(MiB, FORWARD, Category.ACTIVATION)
    job.alloc(8 * GiB, stack=stack)
    device = explained(job)
    assert (device.failed_at.phase, device.failed_at.iteration) == (phase, iteration)


def trained(**how) -> Training:
    job = Training(**how)
    job.build()
    for _ in range(3):
        job.step()
    return job


def test_a_smaller_card_shows_where_the_job_would_have_failed():
    job = trained()
    device = explained(job, limit=160 * MiB)
    assert device.is_predicted
    event = device.verdict.event
    assert device.failure is not None
    assert device.verdict.live_requested_bytes == job.timeline().held[event - 1] == device.failure.bytes
    assert device.verdict.requested_bytes == job.trace().size[event]
    assert device.pins is None
    small = Training(160 * MiB)
    small.build()
    with pytest.raises(AssertionError):
        small.step()
    really = explained(small).verdict
    assert (device.verdict.kind, device.verdict.live_requested_bytes) == (really.kind, really.live_requested_bytes)
    assert device.verdict.gaps == really.gaps


def test_what_only_puts_a_failure_off_on_a_smaller_card_is_no_cure():
    machine = fragmented(total=4 * GiB)
    machine.alloc(700 * MiB)
    device = explained(machine, limit=GiB)
    verdict, last = device.verdict, len(machine.trace()) - 1
    assert verdict.event < last
    assert verdict.cured_by == ()
    assert verdict.uncured
    assert verdict.put_off_by.name == "expandable_segments:True"
    assert verdict.put_off_by.failed_event == last
    assert f"it fails at event {last}" in verdict.headline
    fits = explained(machine, limit=2 * GiB - 200 * MiB)
    assert fits.verdict.kind == "headroom"
    recorded = {fix.name: fix.failed_event for fix in replay_file(snapshot_of(machine), limit=GiB).rows}
    assert {fix.name: fix.failed_event for fix in verdict.tried} == recorded


@pytest.mark.parametrize("limit", [None, 4 * GiB])
def test_other_settings_are_not_reported_where_the_replay_does_not_repeat_the_recording(limit):
    machine = Machine(4 * GiB)
    machine.free(machine.alloc(700 * MiB))
    machine.alloc(800 * MiB)
    snapshot = snapshot_of(machine, allocator_settings={"expandable_segments": True})
    [device] = explain(snapshot, file="snap.pickle", limit=limit).devices
    assert device.fidelity == 0
    assert device.verdict.tried == ()
    assert "max_split" not in device.verdict.headline
    assert "as recorded" not in device.verdict.headline
    assert "does not repeat this recording (0.0 %): no other settings are compared" in device.caveats[-1]
    [small] = explain(snapshot, file="snap.pickle", limit=GiB).devices
    assert "it is unknown whether an allocation would fail" in small.verdict.headline
    assert not small.shows_end_only


def test_a_recording_of_frees_alone_does_not_take_its_beginning_for_its_end():
    machine = Machine(GiB)
    first = machine.alloc(100 * MiB)
    machine.alloc(50 * MiB)
    start = len(machine.trace())
    machine.free(first)
    snapshot = replace(snapshot_of(machine), traces=(tail(machine.trace(), start),))
    [device] = explain(snapshot, file="snap.pickle").devices
    assert (device.peak.requested_bytes, device.end.requested_bytes) == (150 * MiB, 50 * MiB)
    assert not device.shows_end_only
    assert status_text(device) == "NO FAILED ALLOCATION, 150.00 MiB requested at most"
    assert peak_text(device) == "150.00 MiB requested as the recording began"
    assert "most was held as the recording began, and nothing can be replayed" in device.caveats[0]


def test_a_card_smaller_than_what_is_live_is_capacity_even_where_no_event_can_be_named():
    machine = Machine(GiB)
    machine.alloc(300 * MiB)
    bare = replace(Training().trace(), missing=("trace",))
    snapshot = Snapshot(segments=machine.segments(), traces=(bare,))
    [device] = explain(snapshot, file="snap.pickle", limit=200 * MiB).devices
    assert device.verdict.kind == "capacity"
    assert device.verdict.event is None
    assert device.failure is None
    [device] = explain(snapshot, file="snap.pickle", limit=GiB).devices
    assert device.verdict.kind == "headroom"
    assert "expandable" not in device.verdict.headline, "nothing was replayed"


def test_without_a_card_the_verdict_is_headroom_and_no_margin_is_claimed():
    device = explained(trained())
    document = device.to_json()
    assert device.verdict.kind == "headroom"
    assert document["available_bytes"] is None
    assert document["verdict"]["available_bytes"] is None
    assert {fix["margin_bytes"] for fix in document["tried"]} == {None}
    assert "reserved are overhead at the peak" in device.verdict.headline
    assert device.place.phase == "backward"
    assert device.iterations.count == 3
    assert device.reconciled


def test_a_peak_before_the_first_event_is_reported_by_every_command():
    machine = Machine(GiB)
    given_up, _ = machine.alloc(300 * MiB), machine.alloc(100 * MiB)
    start = len(machine.builder)
    machine.free(given_up)
    machine.empty_cache()
    machine.alloc(50 * MiB)
    snapshot = replace(snapshot_of(machine), traces=(tail(machine.trace(), start),))
    [device] = explain(snapshot, file="snap.pickle").devices
    sums_hold(device)
    assert (device.at_peak.event, device.peak.requested_bytes, device.at_peak.reserved_bytes) == (
        -1,
        400 * MiB,
        400 * MiB,
    )
    assert peak_text(device) == "400.00 MiB requested as the recording began"
    assert (device.verdict.live_requested_bytes, device.verdict.event) == (400 * MiB, None)
    [compared] = diff(Named("a", snapshot), Named("b", snapshot)).devices
    facts = compared.after
    assert (facts.event, facts.peak.requested_bytes, facts.reserved_at_peak_bytes, facts.phase) == (
        -1,
        400 * MiB,
        400 * MiB,
        "",
    )
    replayed = replay_file(snapshot)
    assert (replayed.peak_event, replayed.peak_requested_bytes) == (-1, 400 * MiB)


def test_blocks_that_wait_for_a_stream_are_named():
    machine = Machine(GiB)
    kept = machine.alloc(40 * MiB)
    machine.use_on(kept, 7)
    machine.free(kept)
    machine.alloc(100 * MiB)
    device = explained(machine)
    [row] = device.pending
    assert (row.bytes, row.count) == (40 * MiB, 1)
    assert device.at_peak.active_bytes - device.at_peak.allocated_bytes == 40 * MiB


@settings(max_examples=12, deadline=None)
@given(STEPS, st.sampled_from(CONFS))
def test_a_random_program_is_explained_with_exact_sums(steps, conf):
    machine = Machine(GiB, conf)
    run(machine, steps)
    device = explained(machine)
    assert device.conf == conf or not conf
    assert device.reconciled
    peak, timeline = device.at_peak, device.composition
    assert peak.allocated_bytes is not None
    assert peak.active_bytes is not None
    waiting = sum(row.bytes for row in device.pending)
    assert timeline.bytes - waiting <= peak.allocated_bytes <= peak.active_bytes <= peak.reserved_bytes
    assert timeline.bytes <= peak.active_bytes
    if device.pins is not None and device.failure is None:
        unused = device.pins.pinned_bytes + device.pins.idle_bytes + device.pins.rounding_bytes
        assert unused == device.overhead_at_peak_bytes
