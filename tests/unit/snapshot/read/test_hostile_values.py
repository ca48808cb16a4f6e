"""Values that a file may hold and no job would: each is one line of refusal, or is read for what it is worth."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oomscope.errors import SnapshotError
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.provenance import KEY
from oomscope.snapshot.read.build_snapshot import snapshot_of
from oomscope.units import MiB
from tests.unit.snapshot.explained import explain

BASE = 0x7F00_0000_0000


def alloc(address: int, size: int, **more: Any) -> dict[str, Any]:
    return {"action": "alloc", "addr": address, "size": size, "stream": 0, "frames": [], **more}


def document(*events: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"segments": [], "device_traces": [list(events)], **more}


def explained(value: dict[str, Any]) -> dict[str, Any]:
    return explain(snapshot_of(value, where="hostile.pickle"), file="hostile.pickle").to_json()


SEGMENT = {"device": 0, "address": BASE, "total_size": 2 * MiB, "stream": 0, "segment_type": "small", "blocks": []}
HUGE = {**SEGMENT, "total_size": 2**62}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            {"segments": [{**SEGMENT, "device": index} for index in range(129)]},
            r"names 129 devices, but torch supports at most 128; give a file",
        ),
        (
            {"segments": [{**SEGMENT, "address": 2**64 - 2 * MiB}]},
            r"segments\[\] is no memory that a device",
        ),
        ({"segments": [{**SEGMENT, "address": 2**64 - MiB}]}, r"segments\[\] is no memory that a device"),
        (
            {"segments": [{**HUGE, "address": 2 * MiB}, {**HUGE, "address": 2 * MiB + 2**62}]},
            r"segments is no list of segments: their sizes add up to more than 8 EiB",
        ),
        (
            document(*(alloc(BASE + index, 2**62) for index in range(2))),
            r"device_traces\[0\] is no trace: its sizes and those of the segments add up to more",
        ),
    ],
    ids=["devices", "the last address", "beyond it", "segments", "events"],
)
def test_what_no_device_has_and_no_sum_can_hold_is_refused(value: dict[str, Any], message: str) -> None:
    with pytest.raises(SnapshotError, match=message):
        snapshot_of({"device_traces": []} | value, where="hostile.pickle")


@settings(max_examples=60)
@given(held=st.integers(1, 2**63 - 2**22), allocated=st.integers(1, 2**63 - 2**22), spread=st.integers(1, 4))
def test_memory_from_before_and_after_the_trace_is_exact_or_refused(held: int, allocated: int, spread: int) -> None:
    """Blocks that were there before the recording lift what it allocates; the sum of both may not pass a column."""
    sizes = [size for size in ([held // spread] * (spread - 1) + [held - held // spread * (spread - 1)]) if size]
    blocks = [{"size": size, "requested_size": size, "state": "active_allocated"} for size in sizes]
    segment = {"device": 0, "address": 2 * MiB, "total_size": held, "stream": 0, "segment_type": "large"}
    value = {"segments": [{**segment, "blocks": blocks}], "device_traces": [[alloc(2**63 + 2 * MiB, allocated)]]}
    if held + allocated >= 2**63:
        said = r"device_traces\[0\] is no trace: its sizes and those of the segments add up to more than 8 EiB; give"
        with pytest.raises(SnapshotError, match=said):
            snapshot_of(value, where="hostile.pickle")
        return
    found = snapshot_of(value, where="hostile.pickle")
    timeline = Timeline.of(found.traces[0], found.segments)
    assert timeline.held.tolist() == timeline.requested.tolist() == [held + allocated]
    assert timeline.initial_requested_bytes == held


@pytest.mark.parametrize("fraction", [float("-inf"), float("nan"), 0.0, 1.5])
def test_a_share_of_the_card_that_is_none_counts_as_unknown(fraction: float) -> None:
    cards = [{"index": 0, "total_bytes": 80 * MiB, "free_bytes": 0, "memory_fraction": fraction}]
    found = snapshot_of(document(alloc(BASE, MiB), **{KEY: {"cards": cards}}), where="hostile.pickle")
    assert found.provenance is not None
    assert found.provenance.cards[0].memory_fraction == 1.0


@pytest.mark.parametrize("size", [2**53 + 1, 2**62 + 1, 2**63 - 1])
def test_a_block_beyond_float_precision_is_exact_to_the_byte(size: int) -> None:
    device = explained(document(alloc(BASE, size)))["devices"][0]
    assert device["peak"]["requested_bytes"] == size
    assert [row["bytes"] for row in device["categories"]] == [size]
    assert [total for row in device["categories"] for total in row["rules"].values()] == [size]
    assert [row["bytes"] for row in device["size_classes"]] == [size]
