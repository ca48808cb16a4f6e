"""Whose rules a recording is replayed under: no more versions are tried than can make a difference."""

from __future__ import annotations

import pytest

from oomscope.snapshot.replay import recording
from oomscope.snapshot.replay.recording import recording_of
from oomscope.snapshot.timeline import Timeline
from oomscope.snapshot.trace import Action, Snapshot
from oomscope.units import GiB, MiB

from .machine import Machine


@pytest.fixture
def versions(monkeypatch) -> list[str]:
    """Return the versions replayed, as they come."""
    tried: list[str] = []

    def serve(requests, settings, *rest, **options):
        tried.append(settings.torch_version)
        return original(requests, settings, *rest, **options)

    original = recording.serve
    monkeypatch.setattr(recording, "serve", serve)
    return tried


def contradicted(machine: Machine) -> Timeline:
    """Return the machine's recording with a segment that no allocator takes, so that no replay is exact."""
    machine.builder.event(Action.SEGMENT_ALLOC, 0x6000_0000_0000, 8 * MiB)
    machine.alloc(3 * MiB)
    return Timeline.of(machine.trace(), machine.segments())


def test_one_replay_is_enough_where_nothing_is_tied(versions):
    machine = Machine(4 * GiB, torch_version="2.13")
    for size in (30, 50, 70):
        machine.free(machine.alloc(size * MiB))
    timeline = contradicted(machine)
    found = recording_of(Snapshot(segments=timeline.segments, traces=(timeline.trace,)), timeline)
    assert not found.fidelity.is_exact
    assert found.stands_for_all
    assert versions == ["2.11"]


def test_every_order_is_tried_where_equally_large_blocks_are_chosen_from(versions):
    machine = Machine(4 * GiB, torch_version="2.13")
    blocks = [machine.alloc(30 * MiB) for _ in range(3)]
    for block in blocks:
        machine.free(block)
    machine.alloc(30 * MiB)
    timeline = contradicted(machine)
    found = recording_of(Snapshot(segments=timeline.segments, traces=(timeline.trace,)), timeline)
    assert not found.stands_for_all
    assert versions == ["2.11", "2.12", "2.13"]
