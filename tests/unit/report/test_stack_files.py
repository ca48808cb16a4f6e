"""Files of speedscope and folded stacks: their frames, and sums that are those of the document."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from oomscope.cli.main import run
from oomscope.report.exports.stack_files import folded, speedscope
from oomscope.snapshot.read.load import load_snapshot
from oomscope.snapshot.write import write_snapshot
from tests.unit.report import drawn

SNAPSHOTS = Path(__file__).parents[3] / "fixtures" / "snapshots"


def test_a_profile_of_speedscope_sums_to_the_live_bytes_of_its_moment() -> None:
    found, drawings = drawn.explained(drawn.failing())
    document = json.loads(speedscope(found, drawings))
    frames = document["shared"]["frames"]
    profiles = {profile["name"]: profile for profile in document["profiles"]}
    for profile in profiles.values():
        assert len(profile["samples"]) == len(profile["weights"])
        assert sum(profile["weights"]) == profile["endValue"]
        assert {number for stack in profile["samples"] for number in stack} <= set(range(len(frames)))
    device = found.devices[0]
    assert profiles["device 0 at the peak"]["endValue"] == device.peak.requested_bytes
    assert profiles["device 0 at the failed allocation"]["endValue"] == device.failure.bytes
    assert {"name": "forward", "file": "/home/ada/project/model.py", "line": 10} in frames


def test_folded_stacks_sum_to_the_peak_and_have_no_semicolon_inside_a_frame() -> None:
    found, drawings = drawn.explained(drawn.failing("a;b\nc"))
    lines = [re.fullmatch(r"(.+) (\d+)", line).groups() for line in folded(found, drawings).splitlines()]
    assert sum(int(size) for _, size in lines) == found.devices[0].peak.requested_bytes
    assert ("…/ada/project/model.py:0 a:b\\nc", str(12 * 2**20)) in lines


def test_a_file_without_events_has_what_its_segments_hold() -> None:
    found, drawings = drawn.explained(load_snapshot(SNAPSHOTS / "torch-2.6-no-trace.pickle"))
    sizes = [int(line.rpartition(" ")[2]) for line in folded(found, drawings).splitlines()]
    assert sum(sizes) == found.devices[0].peak.requested_bytes > 0


def test_the_command_writes_both_and_hides_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(write_snapshot(drawn.failing("secret_forward"), tmp_path / "ada.pickle"))
    names = [str(tmp_path / "live.speedscope.json"), str(tmp_path / "live.folded")]
    words = ["explain", file, "--speedscope", names[0], "--folded", names[1]]
    assert run([*words, "--redact", "all"]) == 0
    assert capsys.readouterr().err.splitlines() == [f"Wrote {name}" for name in names]
    for name in names:
        assert not re.search("secret|model.py", Path(name).read_text(encoding="utf-8"))
    assert run(words) == 2
    assert "file exists" in capsys.readouterr().err
