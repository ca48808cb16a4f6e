"""Which pool a failed request was made in decides which free blocks could have served it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.judge.verdict import failure_of, judge
from oomscope.snapshot.replay.gaps import Request, gaps_of
from oomscope.snapshot.trace import Block, Segment
from oomscope.units import MiB
from tests.unit.snapshot.machine import Machine
from tests.unit.snapshot.strategies import segment

DEFAULT, PRIVATE = (0, 0), (0, 1)


def half_used(pool_id: tuple[int, int]) -> Segment:
    """Return a segment of 20 MiB, of which 18 are free."""
    used = Block(address=0, size=2 * MiB, requested_size=2 * MiB, state="active_allocated")
    free = Block(address=2 * MiB, size=18 * MiB, requested_size=18 * MiB, state="inactive")
    return segment(20 * MiB, used, free, pool_id=pool_id)


@pytest.mark.parametrize(
    ("held", "asked", "mib", "reason"),
    [
        (DEFAULT, DEFAULT, 18, "cached_usable"),
        (DEFAULT, PRIVATE, 18, "outside_pool"),
        (DEFAULT, None, 18, "unknown_pool"),
        (DEFAULT, None, 19, "split_remainder"),
        (PRIVATE, DEFAULT, 18, "private_pool"),
        (PRIVATE, PRIVATE, 18, "cached_usable"),
        (PRIVATE, PRIVATE, 19, "split_remainder"),
        (PRIVATE, None, 18, "unknown_pool"),
        (PRIVATE, None, 19, "private_pool"),
    ],
)
def test_a_request_is_served_from_its_own_pool_only(held, asked, mib, reason):
    request = Request(size=mib * MiB, stream=0, taken_from_driver=20 * MiB, pool_id=asked)
    (gap,) = gaps_of([half_used(held)], request, 20 * MiB)
    assert (gap.reason, gap.bytes) == (reason, 18 * MiB)


@pytest.mark.parametrize(
    ("pools", "told", "reason"),
    [
        ((DEFAULT,), False, "unknown_pool"),
        ((DEFAULT,), True, "cached_usable"),
        ((DEFAULT, PRIVATE), True, "outside_pool"),
    ],
    ids=["untold", "default", "private"],
)
def test_the_event_names_the_pool(pools, told, reason):
    machine = Machine(60 * MiB)
    machine.alloc(40 * MiB)
    machine.alloc(2 * MiB)
    machine.alloc(19 * MiB)
    private, default = machine.segments()
    trace = machine.trace()
    pool_id = np.where(trace.size > 2 * MiB, len(pools) - 1, 0).astype(np.int32)
    trace = replace(trace, pools=pools, pool_id=pool_id, names_pools=told)
    failure = failure_of(replace(trace, size=np.minimum(trace.size, 18 * MiB)))
    timeline = Timeline.of(trace, (replace(private, pool_id=PRIVATE), default))
    verdict = judge(timeline, machine.device, failure=failure)
    assert {gap.reason: gap.bytes for gap in verdict.gaps} == {reason: 18 * MiB}
