"""What a recording says of itself comes back as it was written, and damage to it never harms the snapshot."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.snapshot.provenance import Card, Provenance, Refused, provenance_of
from oomscope.snapshot.read.load import load_snapshot
from oomscope.snapshot.read.schema import snapshot_of
from oomscope.snapshot.trace import Snapshot
from oomscope.snapshot.write import write_snapshot

TOLD = Provenance(
    reason="oom",
    rank=3,
    world_size=8,
    iteration=12,
    host="node",
    pid=77,
    time="2026-01-02T03:04:05+00:00",
    torch_version="2.13.0",
    max_entries=1000,
    stacks="python",
    cards=(Card(index=1, name="H200", total_bytes=150, free_bytes=4, memory_fraction=0.5),),
    refused=Refused(device=1, requested_bytes=9, allowed_bytes=75, free_bytes=4),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def test_it_travels_in_the_file(tmp_path: Path) -> None:
    path = write_snapshot(Snapshot(segments=(), traces=(), provenance=TOLD), tmp_path / "s.pickle")
    assert load_snapshot(path).provenance == TOLD


def test_a_snapshot_from_elsewhere_has_none() -> None:
    assert snapshot_of({"segments": [], "device_traces": []}, where="x").provenance is None


@pytest.mark.parametrize("damage", [{"rank": "3"}, {"rank": True}, {"cards": 5}, {"cards": [{"name": "H200"}]}])
def test_what_is_damaged_is_unknown(damage: dict[str, object]) -> None:
    read = provenance_of(TOLD.to_json() | damage)
    assert read is not None
    assert (read.rank, len(read.cards)) in {(-1, 1), (3, 0)}
    assert read.refused == TOLD.refused


def test_half_a_refusal_is_none() -> None:
    read = provenance_of(TOLD.to_json() | {"refused": {"device": 1, "requested_bytes": 9}})
    assert read is not None
    assert read.refused is None


@given(st.dictionaries(st.sampled_from(sorted(TOLD.to_json())), VALUES))
def test_nothing_in_it_can_fail(damage: dict[str, object]) -> None:
    assert isinstance(provenance_of(TOLD.to_json() | damage), Provenance)
