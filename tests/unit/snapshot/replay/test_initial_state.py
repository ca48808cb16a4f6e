"""What the allocator held when a recording began is recovered from how it ended."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from oomscope.allocator import AllocatorSettings
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.replay.initial_memory import AddressRanges
from oomscope.snapshot.replay.initial_state import recover
from oomscope.units import GiB, MiB
from tests.unit.snapshot.cuts import CONFS, STEPS, cut, tail
from tests.unit.snapshot.machine import Machine


def shape(segment) -> tuple:
    """Return a segment with its blocks; what waits for a stream counts as allocated."""
    return (
        segment.address,
        segment.total_size,
        segment.stream,
        segment.segment_type,
        segment.is_expandable,
        [(block.address, block.size, block.state == "inactive") for block in segment.blocks],
    )


@settings(max_examples=120, deadline=None)
@given(STEPS, st.sampled_from(CONFS), st.integers(0, 100))
def test_the_segments_of_then_are_recovered_from_those_at_the_end(steps, conf, at):
    recording = cut(steps, conf, at)
    state = recover(recording.timeline, AllocatorSettings.parse(conf))
    assert state.held is not None
    assume(not state.doubts)
    recovered = sorted(state.held.segments, key=lambda segment: segment.address)
    assert [shape(segment) for segment in recovered] == [shape(segment) for segment in recording.truth]
    live = {block.address for segment in recording.truth for block in segment.blocks if block.state != "inactive"}
    assert set(state.held.ids) == live


def test_a_block_keeps_the_end_that_was_not_split_off():
    machine = Machine(GiB)
    block = machine.alloc(25 * MiB)
    machine.free(block)
    trace = tail(machine.trace(), 2)
    state = recover(Timeline.of(trace, machine.segments()), AllocatorSettings.parse(""))
    assert [block.size for block in state.held.segments[0].blocks] == [26 * MiB]


def test_an_end_that_is_not_known_is_a_caveat():
    machine = Machine(GiB)
    blocks = [machine.alloc(size * MiB) for size in (4, 5, 6)]
    recorded = len(machine.builder)
    machine.free(blocks[0])
    timeline = Timeline.of(tail(machine.trace(), recorded), machine.segments())
    assert recover(timeline, AllocatorSettings.parse("")).doubts == ()
    hidden = [replace(segment, blocks=segment.blocks[:1]) for segment in machine.segments()]
    hidden = [replace(hidden[0], blocks=(replace(hidden[0].blocks[0], state="inactive", size=20 * MiB),))]
    (doubt,) = recover(Timeline.of(timeline.trace, hidden), AllocatorSettings.parse("")).doubts
    assert doubt == "up to 1 MiB behind 1 blocks from before the recording may not have been free"


def test_without_segments_only_a_clean_start_is_known():
    machine = Machine(GiB)
    block = machine.alloc(MiB)
    assert recover(Timeline.of(machine.trace()), AllocatorSettings.parse("")).doubts == ()
    machine.free(block)
    state = recover(Timeline.of(tail(machine.trace(), 2)), AllocatorSettings.parse(""))
    assert state.held is None
    assert state.doubts == ("the segments at the end are unknown",)


@pytest.mark.parametrize(
    ("change", "doubt"),
    [
        (lambda segments: (), "1 segment events contradict the segments at the end"),
        (lambda segments: tuple(replace(each, address=each.address + GiB) for each in segments), "contradict"),
    ],
)
def test_segments_of_another_run_are_ignored(change, doubt):
    machine = Machine(GiB)
    machine.alloc(MiB)
    state = recover(Timeline.of(machine.trace(), change(machine.segments())), AllocatorSettings.parse(""))
    assert state.held is None
    assert doubt in state.doubts[0]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20), st.integers(1, 8)), max_size=30))
def test_ranges_hold_what_a_set_of_addresses_holds(changes):
    ranges, model = AddressRanges(), set()
    for adds, start, length in changes:
        span = set(range(start, start + length))
        if adds:
            assert ranges.add(start, start + length) == model.isdisjoint(span)
            model |= span
        else:
            assert ranges.remove(start, start + length) == (span <= model)
            model -= span
        assert {address for low, high in ranges for address in range(low, high)} == model
        ends = list(ranges)
        assert all(high < low for (_, high), (low, _) in pairwise(ends))
