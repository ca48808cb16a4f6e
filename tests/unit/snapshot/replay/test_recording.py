"""Under which settings and by which allocator a job really ran: reported settings, the recorded text, Ascend NPUs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.replay.ascend import is_ascend, sizes_asked
from oomscope.snapshot.replay.recording import ignored_conf, recorded_conf, recording_of
from oomscope.snapshot.replay.replay_table import replay_file
from oomscope.snapshot.trace import Action, Block, Snapshot
from oomscope.units import GiB, KiB, MiB
from tests.unit.snapshot.explained import explain
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
def test_settings_that_are_ill_formed_or_without_rules_are_left_out_and_named(part):
    snapshot = snapshot_with(PYTORCH_CUDA_ALLOC_CONF=f"max_split_size_mb:64,{part}")
    assert ignored_conf(snapshot) == (part,)
    [device] = explain(snapshot, file="snap.pickle").devices
    assert any(caveat.endswith(f"are ignored: {part}") for caveat in device.caveats)
    assert "settings_unheeded" in {caveat.code for caveat in replay_file(snapshot).caveats}


BLOCK_ACTIONS = (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED)


def played(conf: str = "", *, hidden: int = 0) -> Snapshot:
    """Return a snapshot whose blocks were asked for with ``hidden`` more bytes than it says."""
    machine = Machine(4 * GiB, conf, torch_version="2.11")
    blocks = [machine.alloc(size * 512 + hidden) for size in (*range(1, 40), 4000, 50_000)]
    for block in blocks[::3]:
        machine.free(block)
    trace = machine.trace()
    size = np.where(np.isin(trace.action, BLOCK_ACTIONS), trace.size - hidden, trace.size)
    segments = tuple(
        replace(segment, blocks=tuple(_said(block, hidden) for block in segment.blocks))
        for segment in machine.segments()
    )
    return Snapshot(segments=segments, traces=(replace(trace, size=size),))


def _said(block: Block, hidden: int) -> Block:
    return block if block.state == "inactive" else replace(block, requested_size=block.requested_size - hidden)


@pytest.mark.parametrize(("hidden", "expected"), [(0, False), (32, True)])
def test_ascend_is_recognised_by_the_bytes_between_neighbours(hidden, expected):
    snapshot = played(hidden=hidden)
    timeline = Timeline.of(snapshot.traces[0], snapshot.segments)
    assert is_ascend(timeline) == expected
    assert recording_of(snapshot, timeline).fidelity.is_exact


def test_expandable_blocks_of_two_mebibytes_are_aligned():
    snapshot = played("expandable_segments:True", hidden=32)
    timeline = Timeline.of(snapshot.traces[0], snapshot.segments)
    asked = dict(zip(timeline.lifetimes.size.tolist(), sizes_asked(timeline).tolist(), strict=True))
    assert asked[512] == 544
    assert asked[4000 * 512] == 4000 * 512 + 32
    assert asked[50_000 * 512] == -(-(50_000 * 512 + 32) // (16 * KiB)) * 16 * KiB
    assert asked[50_000 * 512] < 25 * MiB
