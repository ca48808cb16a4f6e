"""Recordings that begin in the middle: random programs on an emulated card, of which only the end was recorded."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.replay.segment_map import part_of
from oomscope.snapshot.trace import Segment, Snapshot, Trace
from oomscope.units import GiB, MiB
from tests.unit.snapshot.machine import Machine

SIZES = st.sampled_from((1, 500, 4096, 300_000, MiB, 3 * MiB, 10 * MiB, 25 * MiB, 70 * MiB))
CONFS = ("", "expandable_segments:True", "max_split_size_mb:32", "roundup_power2_divisions:4")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("alloc", "alloc", "alloc", "free", "free", "use", "synchronize", "empty")),
        SIZES,
        st.integers(0, 99),
    ),
    max_size=60,
)


@dataclass(frozen=True)
class Cut:
    """The end of a recording, and the segments with which it begins."""

    timeline: Timeline
    truth: tuple[Segment, ...]
    machine: Machine

    @property
    def snapshot(self) -> Snapshot:
        """The recording as a file holds it."""
        return Snapshot(segments=self.timeline.segments or (), traces=(self.timeline.trace,))


def cut(steps, conf: str, at: int, *, total: int = 4 * GiB, torch_version: str = "2.11") -> Cut:
    """Play ``steps``, and forget what was recorded of the first ``at`` per cent of them."""
    machine = Machine(total, conf, torch_version=torch_version)
    held: list[int] = []
    start, truth = 0, machine.segments()
    for number, step in enumerate(steps):
        if number == len(steps) * at // 100:
            start, truth = len(machine.builder), machine.segments()
        play(machine, held, *step)
    return Cut(Timeline.of(tail(machine.trace(), start), machine.segments()), truth, machine)


def play(machine: Machine, held: list[int], what: str, size: int, choice: int) -> None:
    """Carry out one step; ``held`` are the blocks that the program has."""
    if what == "alloc":
        address = machine.alloc(size, choice % 2)
        held += [] if address is None else [address]
    elif what == "synchronize":
        machine.synchronize()
    elif what == "empty":
        machine.empty_cache()
    elif held and what == "free":
        machine.free(held.pop(choice % len(held)))
    elif held:
        machine.use_on(held[choice % len(held)], 7)


def tail(trace: Trace, start: int) -> Trace:
    """Return the events from ``start`` on, as a ring that wrapped leaves them."""
    return part_of(trace, slice(start, None))
