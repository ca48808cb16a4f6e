"""An ``oom`` event that does not tell how much of the device was free: unknown stays unknown, and is never zero."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from oomscope.report.dataframes import events
from oomscope.snapshot.explain.explain import explain
from oomscope.snapshot.read.load import load_snapshot
from oomscope.snapshot.read.schema import snapshot_of
from oomscope.snapshot.replay.recording import recording_of
from oomscope.snapshot.timeline import Timeline
from oomscope.snapshot.trace import Snapshot
from oomscope.snapshot.write import write_snapshot
from oomscope.units import MiB

BASE = 0x7F00_0000_0000


def failed(asked: int, *, live: int = 3 * MiB, reserved: int = 20 * MiB, **told: int) -> dict[str, Any]:
    """Return a document in which ``asked`` bytes were refused beside one live block in one segment."""
    free = {"address": BASE + live, "size": reserved - live, "requested_size": 0, "state": "inactive"}
    block = {"address": BASE, "size": live, "requested_size": live, "state": "active_allocated"}
    segment = {"device": 0, "address": BASE, "total_size": reserved, "stream": 0, "segment_type": "large"}
    trace = [
        {"action": "segment_alloc", "addr": BASE, "size": reserved, "stream": 0},
        {"action": "alloc", "addr": BASE, "size": live, "stream": 0},
        {"action": "oom", "size": asked, "stream": 0, **told},
    ]
    return {"segments": [{**segment, "blocks": [block, free]}], "device_traces": [trace]}


def snapshot(document: dict[str, Any]) -> Snapshot:
    return snapshot_of(document, where="oom.pickle")


def device(document: dict[str, Any], **card: int) -> dict[str, Any]:
    told = explain(snapshot(document), file="oom.pickle", **card).to_json()
    found: dict[str, Any] = json.loads(json.dumps(told))["devices"][0]
    return found


@pytest.mark.parametrize(("told", "free"), [({}, None), ({"device_free": 0}, 0), ({"device_free": 5}, 5)])
def test_a_trace_tells_what_was_free_only_where_the_file_does(told: dict[str, int], free: int | None) -> None:
    trace = snapshot(failed(64 * MiB, **told)).traces[0]
    assert trace.device_free(2) == free
    address = events(trace)["address"]
    assert address.isna().tolist() == [False, False, free is None]


def test_what_is_unknown_is_written_as_unknown(tmp_path: Path) -> None:
    path = write_snapshot(snapshot(failed(64 * MiB)), tmp_path / "s.pickle")
    assert "device_free" not in pickle.loads(path.read_bytes())["device_traces"][0][2]
    assert load_snapshot(path).traces[0].device_free(2) is None


def test_the_replay_fails_where_the_recording_did_although_the_card_is_unknown() -> None:
    found = snapshot(failed(64 * MiB))
    recording = recording_of(found, Timeline.of(found.traces[0], found.segments))
    assert recording.budget.available_bytes is None
    assert recording.baseline.failed_event == 2
    assert recording.fidelity.is_exact


def test_neither_capacity_nor_fragmentation_is_claimed() -> None:
    found = device(failed(64 * MiB))
    verdict = found["verdict"]
    assert (verdict["kind"], verdict["tags"], verdict["cured_by"]) == ("unknown", ["free unknown"], [])
    assert found["available_bytes"] is verdict["available_bytes"] is None
    assert {gap["reason"]: gap["bytes"] for gap in verdict["gaps"]} == {"split_remainder": 17 * MiB}
    assert "Free device memory was not recorded" in verdict["headline"]
    assert "TiB" not in verdict["headline"]


def test_what_was_reserved_before_shows_fragmentation_all_the_same() -> None:
    verdict = device(failed(17 * MiB - 1024, reserved=20 * MiB + 4 * MiB, live=6 * MiB))["verdict"]
    assert verdict["kind"] == "fragmentation"
    assert not verdict["uncured"]


def test_a_card_that_the_user_names_decides() -> None:
    found = device(failed(64 * MiB), limit=66 * MiB)
    assert (found["verdict"]["kind"], found["available_bytes"]) == ("capacity", 66 * MiB)


def test_a_device_with_nothing_free_is_no_unknown_one() -> None:
    verdict = device(failed(64 * MiB, device_free=0))["verdict"]
    assert (verdict["kind"], verdict["available_bytes"], verdict["tags"]) == ("capacity", 20 * MiB, [])
