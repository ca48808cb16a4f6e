"""Every snapshot at hand loads with all its events, and its live bytes end at the segments' own counters."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from oomscope.snapshot.accounting.discrepancies import Cause
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.read.load import load_snapshot


class Expected(NamedTuple):
    """What a file holds."""

    events: tuple[int, ...]
    """By device."""
    segments: int
    missing: set[str]
    """By the file and all of its traces."""
    discrepancies: tuple[Cause, ...] = ()


OLD = {"allocator_settings", "external_annotations"}
RECORDED = {
    "albi2_677c1c0.pickle": Expected((0,), 2, {"trace"}),
    "kkai_1fcf79f_memory_ctx512_forward.pickle": Expected((4152,), 649, {"start"}),
    "kkai_740a7f2_memory_small_forward.pickle": Expected((8507,), 30, {"start"}),
    "kkai_8e546d3_memory_snapshot.pickle": Expected((0,), 1457, {"trace"}),
    "kkai_b1a7c70_memory_ctx128_fullstep.pickle": Expected((19052,), 1010, {"start"}),
    "memsnapdump_new_snapshot_with_empty_cache.pkl": Expected((8180,), 34, OLD | {"time_us", "start"}),
    "memsnapdump_snapshot_with_empty_cache_expandable.pkl": Expected((8092,), 2, OLD | {"time_us", "start"}),
    "memsnapdump_snapshot_with_multi_devices.pkl": Expected((8132, 9700), 55, OLD | {"time_us", "start"}),
    # whoever anonymised this one made up its counters
    "mosaic_output.pickle": Expected((1040,), 5, {"allocator_settings", "start"}, (Cause.COUNTERS_DIFFER,)),
    "wedson_medium_128_training_memory_snapshot.pickle": Expected((19136,), 377, {"start"}),
    "wedson_medium_256_inference_memory_snapshot.pickle": Expected((3840,), 101, {"start"}),
    "wedson_medium_512_training_memory_snapshot.pickle": Expected((22332,), 400, {"start"}),
    "yiyi_1.3b_08fa910.pickle": Expected((1,), 112, OLD | {"time_us", "frames", "start"}),
    "yiyi_oom_snapshot.pickle": Expected((1,), 176, OLD | {"time_us", "frames", "start"}),
}
"""Recorded on GPUs by torch 2.0 to 2.11."""
MADE = {
    "torch-2.0.pickle": Expected((67,), 4, OLD | {"time_us"}),
    "torch-2.0-segments-only.pickle": Expected((0,), 4, OLD | {"trace"}),
    "torch-2.1-two-devices.pickle": Expected((67, 44), 3, OLD | {"time_us"}),
    "torch-2.3-spans.pickle": Expected((69,), 4, {"external_annotations"}),
    "torch-2.6-wrapped.pickle.gz": Expected((60,), 4, {"start"}),
    "torch-2.6-wrapped.json": Expected((60,), 4, {"start"}),
    "torch-2.6-wrapped-gradients.pickle": Expected((48,), 5, {"start"}),
    "torch-2.6-no-trace.pickle": Expected((0,), 4, {"trace"}),
    "torch-2.13-oom.pickle.zst": Expected((98,), 3, set()),
}
"""Of ``fixtures/snapshots``."""
FIXTURES = Path(__file__).parents[2] / "fixtures" / "snapshots"


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_files_load_and_reconcile(ground_truth, name):
    holds(ground_truth / "snapshots" / name, RECORDED[name])


def test_no_recorded_file_is_left_out(ground_truth):
    assert {path.name for path in (ground_truth / "snapshots").glob("*.p*k*")} == RECORDED.keys()


@pytest.mark.parametrize("name", MADE)
def test_fixtures_load_and_reconcile(name):
    holds(FIXTURES / name, MADE[name])


def test_the_fixtures_are_listed():
    listed = {line.split("`")[1] for line in (FIXTURES / "README.md").read_text().splitlines() if "| `torch" in line}
    assert listed == {path.name for path in FIXTURES.glob("torch-*")} == MADE.keys()


def test_a_trip_through_json_changes_nothing():
    pickled, text = (load_snapshot(FIXTURES / f"torch-2.6-wrapped.{end}") for end in ("pickle.gz", "json"))
    assert pickled.segments == text.segments
    assert pickled.annotations == text.annotations
    assert pickled.traces[0].stacks == text.traces[0].stacks
    assert pickled.traces[0].address.tolist() == text.traces[0].address.tolist()


def test_pinned_host_memory_is_left_out():
    snapshot = load_snapshot(FIXTURES / "torch-2.13-oom.pickle.zst")
    assert all(segment.address > 1 << 31 for segment in snapshot.segments)


def holds(path: Path, expected: Expected) -> None:
    snapshot = load_snapshot(path)
    assert tuple(map(len, snapshot.traces)) == expected.events
    assert len(snapshot.segments) == expected.segments
    missing = {*snapshot.missing, *(name for trace in snapshot.traces for name in trace.missing)}
    begins_late = any(Timeline.of(trace, snapshot.segments).begins_late for trace in snapshot.traces)
    assert missing | ({"start"} if begins_late else set()) == expected.missing
    assert not any(trace.unknown_actions for trace in snapshot.traces)
    for trace in snapshot.traces:
        timeline = Timeline.of(trace, snapshot.segments)
        found = timeline.reconciliation
        assert found.difference_bytes == found.inconsistent_events == 0
        assert tuple(reason.cause for reason in found.reasons) == expected.discrepancies
        if not expected.discrepancies:
            assert found.segment_bytes == sum(segment.requested_counter for segment in timeline.segments or ())
