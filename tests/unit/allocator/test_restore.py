"""An allocator that is put back as its segments show it goes on as the one that they were taken from."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oomscope.allocator import (
    AllocatorBlock,
    AllocatorSegment,
    AllocatorSettings,
    Driver,
    Held,
    Replay,
    ReplayOp,
)
from oomscope.errors import UsageError
from oomscope.units import GiB, MiB
from tests.caching_allocator import ShownReplay

CONFS = ("", "expandable_segments:True", "max_split_size_mb:32")
SIZES = st.sampled_from((1, 700, 4096, 300_000, MiB, MiB + 1, 3 * MiB, 10 * MiB, 25 * MiB, 70 * MiB))
OPS = st.lists(
    st.tuples(st.sampled_from(("malloc", "malloc", "free", "empty")), SIZES, st.integers(0, 99)), max_size=40
)


class Batch:
    """Random operations as columns, with the ids that are live."""

    def __init__(self) -> None:
        self.live: list[int] = []
        self.count = 0

    def columns(self, ops) -> tuple[list[int], list[int], list[int], list[int]]:
        rows = []
        for kind, size, choice in ops:
            if kind == "malloc":
                rows.append((ReplayOp.MALLOC, self.count, size, choice % 2))
                self.live.append(self.count)
                self.count += 1
            elif kind == "free" and self.live:
                rows.append((ReplayOp.FREE, self.live.pop(choice % len(self.live)), 0, 0))
            elif kind == "empty":
                rows.append((ReplayOp.EMPTY_CACHE, 0, 0, 0))
        return tuple(list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [], [])


@settings(max_examples=80, deadline=None)
@given(OPS, OPS, st.sampled_from(CONFS), st.sampled_from(("bump", "down", "firstfit")))
def test_a_restored_allocator_goes_on_as_the_original(before, after, conf, policy):
    batch = Batch()
    parsed = AllocatorSettings.parse(conf, torch_version="2.11")
    world = {"settings": parsed, "driver": Driver(4 * GiB, policy=policy), "ids": 100}
    first = ShownReplay(**world)
    outcome = first.run(*batch.columns(before))
    first.drain_events()
    mallocs = [address for address in outcome.addresses.tolist() if address >= 0]
    held = Held(segments=first.segments(), ids={mallocs[number]: number for number in batch.live})
    second = ShownReplay(**world, held=held)
    assert second.segments() == renumbered(first.segments())
    for counter in ("reserved_bytes", "allocated_bytes", "active_bytes", "device_free"):
        assert getattr(second, counter) == getattr(first, counter)
    columns = batch.columns(after)
    ours, theirs = second.run(*columns), first.run(*columns)
    if policy == "firstfit":
        assert ours.addresses.tolist() == theirs.addresses.tolist()
    assert ours.sizes.tolist() == theirs.sizes.tolist()
    assert [(e.action, e.size, e.op, e.stream) for e in ours.events] == [
        (e.action, e.size, e.op, e.stream) for e in theirs.events
    ]
    ends = second.stats(), first.stats()
    for name in ("segment", "reserved_bytes", "allocation", "active_bytes", "inactive_split", "inactive_split_bytes"):
        assert [pool["current"] for pool in ends[0][name].values()] == [
            pool["current"] for pool in ends[1][name].values()
        ]


def renumbered(segments: list[AllocatorSegment]) -> list[AllocatorSegment]:
    """Return the segments with their ranges numbered without the gaps that released ones leave."""
    numbers = {number: index for index, number in enumerate(sorted({segment.range for segment in segments}))}
    return [
        AllocatorSegment(
            segment.address,
            segment.total_size,
            segment.stream,
            segment.segment_type,
            segment.is_expandable,
            numbers[segment.range],
            segment.offset,
            segment.blocks,
        )
        for segment in segments
    ]


def segment(*blocks: AllocatorBlock, total: int = 2 * MiB) -> AllocatorSegment:
    return AllocatorSegment(0x1000_0000, total, 0, "small", False, 0, 0, blocks)


@pytest.mark.parametrize(
    ("held", "message"),
    [
        (segment(), "do not tile"),
        (segment(AllocatorBlock(0x1000_0000, MiB, 0, "inactive")), "do not tile"),
        (segment(AllocatorBlock(0x1000_0000, 2 * MiB, 1, "active_pending_free")), "waits for an unknown stream"),
        (segment(AllocatorBlock(0x1000_0000, 2 * MiB, 1, "active_allocated")), "has no id"),
        (segment(AllocatorBlock(0x1000_0000, 2 * GiB, 0, "inactive"), total=2 * GiB), "too small"),
    ],
)
def test_what_contradicts_itself_is_refused(held, message):
    with pytest.raises(UsageError, match=message):
        Replay(AllocatorSettings.parse(""), Driver(GiB), ids=1, held=Held(segments=(held,)))
