"""The largest unused block is the one that the allocator really had."""

from __future__ import annotations

import pytest

from oomscope.probe.analysis.analyse import largest_free_block
from oomscope.snapshot.replay.fixes import Rules
from oomscope.snapshot.timeline import Timeline
from oomscope.units import GiB, MiB
from tests.unit.snapshot.machine import Machine


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_it_is_what_the_allocator_had_in_the_middle_of_the_run(conf: str) -> None:
    machine = Machine(GiB, conf)
    first, second, third = (machine.alloc(size * MiB) for size in (40, 60, 30))
    machine.free(second)
    at = len(machine.builder) - 1
    had = [block.size for segment in machine.segments() for block in segment.blocks if block.state == "inactive"]
    for address in (first, third):
        machine.free(address)
    timeline = Timeline.of(machine.trace(), machine.segments())
    assert largest_free_block(timeline, at, Rules(conf=conf)) == max(had) == 60 * MiB
    assert largest_free_block(timeline, 0, Rules(conf=conf)) == 40 * MiB  # taken, and not yet served
    assert largest_free_block(timeline, 1, Rules(conf=conf)) == 0


def test_settings_without_rules_leave_it_unknown() -> None:
    machine = Machine(GiB, "")
    machine.alloc(MiB)
    timeline = Timeline.of(machine.trace(), machine.segments())
    assert largest_free_block(timeline, 0, Rules(conf="no_such_setting:1")) is None
