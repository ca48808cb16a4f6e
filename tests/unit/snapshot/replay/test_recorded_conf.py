"""Under which settings a job really ran: what the allocator reports counts before the text it was given."""

from __future__ import annotations

import pytest

from oomscope.snapshot.explain.explain import explain
from oomscope.snapshot.replay.recording import recorded_conf, unheeded_conf
from oomscope.snapshot.replay.replay_table import replay_file
from oomscope.snapshot.trace import Snapshot
from oomscope.units import GiB, MiB
from tests.unit.snapshot.machine import Machine


def snapshot_with(**reported) -> Snapshot:
    machine = Machine(GiB)
    machine.alloc(MiB)
    return Snapshot(segments=machine.segments(), traces=(machine.trace(),), allocator_settings=reported)


@pytest.mark.parametrize(
    ("reported", "conf"),
    [
        ({}, ""),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"}, "max_split_size_mb:128"),
        ({"PYTORCH_ALLOC_CONF": "garbage_collection_threshold:0.8"}, "garbage_collection_threshold:0.8"),
        (
            {"PYTORCH_ALLOC_CONF": "roundup_power2_divisions:[256:1,512:2],max_split_size_mb: 64"},
            "roundup_power2_divisions:[256:1,512:2],max_split_size_mb:64",
        ),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:128", "max_split_size": 64 * MiB}, "max_split_size_mb:64"),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:128", "max_split_size": -1}, ""),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, ""),
        (
            {"PYTORCH_ALLOC_CONF": "max_split_size_mb:abc,garbage_collection_threshold:0.5"},
            "garbage_collection_threshold:0.5",
        ),
        ({"PYTORCH_ALLOC_CONF": "pinned_use_background_threads:True"}, ""),
    ],
)
def test_the_text_counts_where_it_is_all_there_is(reported, conf):
    assert recorded_conf(snapshot_with(**reported), 0) == conf


@pytest.mark.parametrize("part", ["max_split_size_mb:abc", "backend:cudaMallocAsync", "no_such_key:1"])
def test_what_is_ill_formed_or_without_rules_is_left_out_and_said(part):
    snapshot = snapshot_with(PYTORCH_CUDA_ALLOC_CONF=f"max_split_size_mb:64,{part}")
    assert unheeded_conf(snapshot) == (part,)
    [device] = explain(snapshot, file="snap.pickle").devices
    assert any(caveat.endswith(f"are left out: {part}") for caveat in device.caveats)
    assert "settings_unheeded" in {caveat.code for caveat in replay_file(snapshot).caveats}
