"""Ascend NPUs are told by where neighbours lie, and replayed with the sizes that their allocator makes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oomscope.snapshot.replay.ascend import is_ascend, sizes_asked
from oomscope.snapshot.replay.recording import recording_of
from oomscope.snapshot.timeline import Timeline
from oomscope.snapshot.trace import Action, Block, Snapshot
from oomscope.units import GiB, KiB, MiB
from tests.unit.snapshot.machine import Machine

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
def test_the_bytes_between_neighbours_tell(hidden, expected):
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


def test_an_empty_trace_is_not_of_an_npu():
    assert not is_ascend(Timeline.of(Machine(GiB).trace(), ()))
