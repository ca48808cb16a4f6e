"""What a replay is asked: as little as says the same."""

from __future__ import annotations

from oomscope.snapshot.builder import TraceBuilder
from oomscope.snapshot.replay.requests import Kind, requests_of
from oomscope.snapshot.timeline import Timeline
from oomscope.snapshot.trace import Action

BASE = 0x7F00_0000_0000


def test_one_completion_stands_for_all_before_the_same_allocation() -> None:
    """Looking at a stream takes time with what waits for it, so once an allocation is enough."""
    builder = TraceBuilder()
    for index in range(4):
        builder.event(Action.ALLOC, BASE + index * 512, 512)
        builder.event(Action.FREE_REQUESTED, BASE + index * 512, 512)
    for index in range(3):
        builder.event(Action.FREE_COMPLETED, BASE + index * 512, 512)
    builder.event(Action.ALLOC, BASE + 4 * 512, 512)
    builder.event(Action.FREE_COMPLETED, BASE + 3 * 512, 512)
    found = requests_of(Timeline.of(builder.build()))
    completions = found.kind == Kind.COMPLETE
    assert found.event[completions].tolist() == [10, 12]
    assert len(set(found.stream[completions].tolist())) == 2
    assert int((found.kind == Kind.USE).sum()) == 4
