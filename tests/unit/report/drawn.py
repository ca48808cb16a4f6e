"""Snapshots whose pages are tested: a job that fails, and one with as many events as a page must bear."""

from __future__ import annotations

import random
from functools import cache
from itertools import pairwise

from oomscope.report.html.pages import explain_page
from oomscope.report.redact import Level, redacted
from oomscope.snapshot.explain.analysis import analyse
from oomscope.snapshot.explain.drawing import Drawing, draw
from oomscope.snapshot.explain.explain import explanation_of
from oomscope.snapshot.explain.explanation import Explanation
from oomscope.snapshot.trace import Action, Block, Category, Frame, Moment, Segment, Snapshot
from oomscope.units import MiB
from tests.trace_builder import TraceBuilder
from tests.unit.snapshot.machine import Machine
from tests.unit.snapshot.strategies import segment


def failing(function: str = "forward") -> Snapshot:
    """A program on a card of 128 MiB: what stays, gaps between what comes and goes, and a request that fails."""
    machine = Machine(128 * MiB)
    stack = lambda line: (Frame("/home/ada/project/model.py", line, function),)  # noqa: E731
    for line in range(3):
        machine.alloc(12 * MiB, stack=stack(line), category=Category.PARAMETER)
    blocks = [machine.alloc(5 * MiB, stack=stack(10 + index % 3)) for index in range(12)]
    for block in blocks[::2]:
        machine.free(block)
    for size in (300, 4000, 70_000):
        machine.alloc(size, stack=stack(30), category=Category.TEMPORARY)
    machine.alloc(60 * MiB, stack=stack(40))
    return Snapshot(segments=machine.segments(), traces=(machine.trace(),))


def long(events: int = 100_000, period: int = 4_000) -> Snapshot:
    """Iterations of one program under stacks of 12 frames, with the jitter in sizes and times that real ones have."""
    chance = random.Random(7)
    files = [f"/home/ada/project/model/layer_{index}.py" for index in range(40)]
    stacks = [
        tuple(Frame(chance.choice(files), chance.randrange(900), f"forward_{chance.randrange(60)}") for _ in range(12))
        for _ in range(1_500)
    ]
    program = [
        (chance.choice(stacks), chance.randrange(512, 64 * MiB), chance.randrange(1, 600)) for _ in range(period)
    ]
    builder, ends, clock, address = TraceBuilder(), [[] for _ in range(period)], 0, 1 << 40
    start = address
    builder.event(Action.SEGMENT_ALLOC, address, 1 << 44, 0, 0)
    iteration = 0
    while len(builder) < events:
        for place, (stack, size, lasts) in enumerate(program):
            clock += chance.randrange(1, 90)
            moment = Moment("forward" if place < period // 2 else "backward", iteration, -1)
            for freed in ends[place]:
                builder.event(Action.FREE_REQUESTED, *freed, 0, clock, stack, moment)
                builder.event(Action.FREE_COMPLETED, *freed, 0, clock)
            ends[place] = []
            size += chance.choice((0, 0, 0, 512))
            builder.event(Action.ALLOC, address, size, 0, clock, stack, moment, Category(1 + place % 9))
            ends[(place + lasts) % period].append((address, size))
            address += -(-size // 512) * 512
        iteration += 1
    live = sorted(row for rows in ends for row in rows)
    return Snapshot(segments=(_segment(start, 1 << 44, live),), traces=(builder.build(),))


def _segment(start: int, size: int, live: list[tuple[int, int]]) -> Segment:
    """Return one segment with these blocks and gaps between them."""
    blocks, at = [], start
    for address, requested in live:
        if address > at:
            blocks.append(Block(address=at, size=address - at, requested_size=0, state="inactive"))
        at = address + -(-requested // 512) * 512
        blocks.append(Block(address=address, size=at - address, requested_size=requested, state="active_allocated"))
    blocks.append(Block(address=at, size=start + size - at, requested_size=0, state="inactive"))
    assert all(one.address + one.size == other.address for one, other in pairwise(blocks))
    return segment(size, *blocks, address=start)


def explained(snapshot: Snapshot, file: str = "job/snap.pickle") -> tuple[Explanation, tuple[Drawing, ...]]:
    """Return what is found and what is drawn."""
    analyses = analyse(snapshot, file=file)
    return explanation_of(snapshot, analyses, file=file), tuple(map(draw, analyses))


def page(snapshot: Snapshot, file: str = "job/snap.pickle", redact: Level | None = None) -> str:
    """Return the page of a snapshot."""
    found = explained(snapshot, file)
    return explain_page(*(found if redact is None else redacted(found, redact)))


@cache
def failing_page() -> str:
    """Return the page of the job that fails."""
    return page(failing())
