"""On every recorded file at hand the emulator repeats what was recorded, or says why it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.read.load import load_snapshot
from oomscope.snapshot.replay.recording import recording_of

REASONS = {
    "memsnapdump_snapshot_with_multi_devices.pkl": "torch_npu aligns blocks of expandable segments to 16 KiB",
    "mosaic_output.pickle": "the block lies in no segment of the file, which records no segment events",
}
"""Files of which a part is not repeated, and why; each unrepeated event names it."""
LEAST = 0.95


def test_every_recorded_file_is_repeated_or_the_reason_is_named(ground_truth: Path) -> None:
    files = sorted(path for path in (ground_truth / "snapshots").iterdir() if path.suffix in {".pickle", ".pkl"})
    assert files, "the ground truth holds no snapshots"
    unnamed = {}
    for path in files:
        snapshot = load_snapshot(path)
        for trace in (trace for trace in snapshot.traces if len(trace)):
            found = recording_of(snapshot, Timeline.of(trace, snapshot.segments)).fidelity
            reasons = {mismatch.reason for mismatch in found.mismatches}
            named = path.name in REASONS and all(reason.startswith(REASONS[path.name]) for reason in reasons)
            if found.share < LEAST and not named:
                unnamed[path.name, trace.device] = found.share, reasons
    assert unnamed == {}


@pytest.mark.parametrize(
    "name",
    [
        "kkai_1fcf79f_memory_ctx512_forward.pickle",
        "kkai_b1a7c70_memory_ctx128_fullstep.pickle",
        "wedson_medium_512_training_memory_snapshot.pickle",
        "memsnapdump_new_snapshot_with_empty_cache.pkl",
    ],
)
def test_every_block_lies_where_it_was_recorded(ground_truth: Path, name: str) -> None:
    path = ground_truth / "snapshots" / name
    if not path.exists():
        pytest.skip(f"no {name} in the ground truth")
    snapshot = load_snapshot(path)
    found = recording_of(snapshot, Timeline.of(snapshot.traces[0], snapshot.segments))
    assert found.fidelity.is_exact
    assert found.rules.torch_version == "2.11"
