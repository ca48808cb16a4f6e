"""The segments and blocks of every moment are those that undoing the rest of the trace gives, and they add up."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from oomscope.snapshot.explain import states as limits
from oomscope.snapshot.explain.analysis import analyse
from oomscope.snapshot.explain.drawing import Drawing, draw
from oomscope.snapshot.explain.states import PENDING, POSITION, States
from oomscope.snapshot.trace import Category, Snapshot
from oomscope.units import KiB, MiB
from tests.unit.snapshot.machine import Machine


def busy(conf: str, *, steps: int = 40) -> Machine:
    """A program that allocates and frees at random on two streams, and empties the cache now and then."""
    chance, machine = random.Random(3), Machine(900 * MiB, conf)
    live: list[int] = []
    for step in range(steps):
        for _ in range(chance.randrange(5)):
            size = chance.choice((256 * KiB, 512 * KiB, 3 * MiB, 12 * MiB, 40 * MiB))
            category = chance.choice(list(Category)[1:])
            if (address := machine.alloc(size, chance.choice((0, 7)), category=category)) is not None:
                live.append(address)
        chance.shuffle(live)
        for address in live[: chance.randrange(5)]:
            machine.use_on(address, 9)
            machine.free(address)
            live.remove(address)
        if step % 15 == 14:
            machine.synchronize()
            machine.empty_cache()
    return machine


def drawn(machine: Machine) -> tuple[Drawing, States]:
    """Return the pictures of a recording."""
    (analysis,) = analyse(Snapshot(segments=machine.segments(), traces=(machine.trace(),)), file="snap")
    drawing = draw(analysis)
    assert drawing.states is not None
    return drawing, drawing.states


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_every_moment_is_what_undoing_the_rest_of_the_trace_gives(conf: str) -> None:
    machine = busy(conf)
    (analysis,) = analyse(Snapshot(segments=machine.segments(), traces=(machine.trace(),)), file="snap")
    states = draw(analysis).states
    assert states is not None
    assert len(states.event) == len(analysis.timeline.trace)
    assert not states.small_count.any()
    for moment, event in enumerate(states.event.tolist()):
        here = analysis.segments_after(event)
        wanted = {
            (block.address, block.requested_size, block.state == "active_pending_free")
            for segment in here.segments
            for block in segment.blocks
            if block.state != "inactive"
        }
        blocks = states.blocks
        rows = np.flatnonzero((blocks.enter <= moment) & (moment < blocks.leave))
        shown = {
            (
                states.areas[blocks.area[row]].address + int(blocks.offset[row]),
                int(blocks.requested[row]),
                bool(blocks.pending[row] <= moment),
            )
            for row in rows.tolist()
        }
        assert shown == wanted
        held = [each for each in states.areas if each.enter <= moment < each.leave and not each.is_expandable]
        pages = states.pages[(states.pages[:, 3] <= moment) & (moment < states.pages[:, 4])]
        reserved = sum(each.size for each in held) + int(pages[:, 2].sum()) + int(states.narrow[moment])
        assert reserved == analysis.timeline.reserved_bytes_at(event)


def test_what_is_too_small_or_too_much_is_summed_and_no_moment_loses_a_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    _, whole = drawn(busy(""))
    totals = limits._sums(whole.blocks, len(whole.event))[0]
    monkeypatch.setattr(limits, "NARROW", 1 / 100)
    monkeypatch.setattr(limits, "TINY", 1 / 100)
    monkeypatch.setattr(limits, "MOST_ROWS", 20)
    monkeypatch.setattr(limits, "NEAR", 8)
    drawing, few = drawn(busy(""))
    assert len(few.event) < len(whole.event)
    assert drawing.plan is not None
    assert few.event[few.shown] == drawing.plan.event
    assert 0 < len(few.blocks) < len(whole.blocks)
    for states in (few, few.without_blocks_below(20 * MiB)):
        assert states.narrow.any()
        assert states.small_count.any()
        drawn_sums, _ = limits._sums(states.blocks, len(states.event))
        for name, curve in totals.items():
            parts = [part[name] for part in (drawn_sums, states.in_narrow, states.small) if name in part]
            assert np.array_equal(sum(parts), curve[np.isin(whole.event, states.event)])
    assert {PENDING, "parameter"} <= totals.keys() <= {PENDING, *(each.label for each in POSITION)}


def test_a_flush_a_retry_and_a_failure_are_distinguished() -> None:
    machine = Machine(100 * MiB)
    first = machine.alloc(40 * MiB)
    machine.free(first)
    machine.empty_cache()
    second = machine.alloc(60 * MiB)
    machine.free(second)
    machine.alloc(80 * MiB)
    machine.alloc(90 * MiB)
    drawing, _ = drawn(machine)
    assert [(each.kind, each.bytes) for each in drawing.incidents] == [
        ("flush", 40 * MiB),
        ("retry", 60 * MiB),
        ("oom", 90 * MiB),
    ]
    assert drawing.failed_event == drawing.incidents[-1].event


def test_a_recording_that_contradicts_itself_has_no_other_moments() -> None:
    machine = busy("", steps=10)
    trace = machine.trace()
    size = trace.size.copy()
    size[0] += 2 * MiB  # the first event takes a segment
    torn = Snapshot(segments=machine.segments(), traces=(replace(trace, size=size),))
    (analysis,) = analyse(torn, file="snap")
    assert draw(analysis).states is None
