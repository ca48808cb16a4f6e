"""The segments in the middle of a recording are those that the allocator really had then."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from oomscope.allocator import AllocatorSettings
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.explain.pins import pins_of
from oomscope.snapshot.replay.segment_map import segments_after
from oomscope.snapshot.sites import Site
from oomscope.units import GiB, MiB
from tests.unit.snapshot.machine import Machine
from tests.unit.snapshot.replay.test_replay import CONFS, STEPS, run

HERE = Site(file="here.py", line=1, function="f")


class Watched(Machine):
    """Copies the segments after each request."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.seen: dict[int, tuple] = {}

    def alloc(self, *arguments, **facts):
        address = super().alloc(*arguments, **facts)
        self.seen[len(self.builder) - 1] = self.segments()
        return address

    def free(self, address: int) -> None:
        super().free(address)
        self.seen[len(self.builder) - 1] = self.segments()


def blocks(segments) -> list[tuple]:
    """Return where active blocks lie and what is asked of them; their sizes may be recovered."""
    return sorted(
        (block.address, block.requested_size, block.state)
        for segment in segments
        for block in segment.blocks
        if block.state != "inactive"
    )


@settings(max_examples=60, deadline=None)
@given(STEPS, st.sampled_from(CONFS))
def test_segments_and_blocks_are_those_of_the_allocator_at_every_event(steps, conf):
    machine = Watched(GiB, conf)
    run(machine, [step for step in steps if step[0] != "synchronize"])
    timeline = Timeline.of(machine.trace(), machine.segments())
    rules = AllocatorSettings.parse(conf)
    for event, segments in machine.seen.items():
        found = segments_after(timeline, event, rules)
        assert found.is_known
        assert sorted((each.address, each.total_size) for each in found.segments) == sorted(
            (each.address, each.total_size) for each in segments
        )
        assert blocks(found.segments) == blocks(segments)
        assert sum(each.total_size for each in found.segments) == timeline.reserved[event]
        assert sum(block[1] for block in blocks(found.segments)) == timeline.requested[event]


@settings(max_examples=30, deadline=None)
@given(STEPS, st.sampled_from(CONFS))
def test_what_is_pinned_idle_and_rounded_sums_to_what_is_reserved_and_not_live(steps, conf):
    machine = Machine(GiB, conf)
    run(machine, steps)
    timeline = Timeline.of(machine.trace(), machine.segments())
    for event in range(-1, len(timeline.trace)):
        here = segments_after(timeline, event, AllocatorSettings.parse(conf))
        pins = pins_of(timeline, here, lambda row: (HERE, "activation"))
        active = int(timeline.requested[event]) if event >= 0 else 0
        unused = pins.pinned_bytes + pins.idle_bytes + pins.rounding_bytes
        assert unused == timeline.reserved_bytes_at(event) - active
        assert sum(line.unused_bytes for line in pins.lines) == pins.pinned_bytes
        assert sum(segment.unused_bytes for segment in pins.segments) == pins.pinned_bytes


def test_the_block_that_stays_longest_is_blamed():
    machine = Machine(GiB)
    whole = machine.alloc(200 * MiB)
    machine.free(whole)
    short, long = machine.alloc(20 * MiB, line=1), machine.alloc(30 * MiB, line=2)
    event = len(machine.builder) - 1
    machine.free(short)
    timeline = Timeline.of(machine.trace(), machine.segments())
    here = segments_after(timeline, event, AllocatorSettings())

    def describe(row: int) -> tuple[Site, str]:
        return Site(file="t.py", line=int(timeline.lifetimes.size[row]) // MiB, function="f"), "activation"

    pins = pins_of(timeline, here, describe)
    [line] = pins.lines
    assert (line.site.line, line.held_bytes, line.unused_bytes) == (30, 30 * MiB, 150 * MiB)
    [segment] = pins.segments
    assert [pin.site.line for pin in segment.pins] == [30, 20]
    assert long is not None
