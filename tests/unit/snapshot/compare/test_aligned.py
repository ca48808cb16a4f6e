"""Two recordings of one program, allocation by allocation: sums are exact, and each kind of difference is named."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from rich.console import Console

from oomscope.errors import InputError
from oomscope.report.diff import align_headline, align_report
from oomscope.snapshot.builder import TraceBuilder
from oomscope.snapshot.compare import paired_events
from oomscope.snapshot.compare.aligned import Aligned, Alignment, align_events
from oomscope.snapshot.timeline import Timeline
from oomscope.snapshot.trace import Action, Frame, Moment
from oomscope.units import MiB
from tests.unit.snapshot.strategies import recordings

ROOT = "/home/somebody/repo"


@dataclass
class Program:
    """Writes a recording."""

    root: str = ROOT
    builder: TraceBuilder = field(default_factory=TraceBuilder)
    sizes: dict[str, tuple[int, int]] = field(default_factory=dict)
    phase: str = "forward"

    def alloc(self, name: str, size: int, line: int, file: str = "model.py") -> Program:
        stack = (Frame(f"{self.root}/{file}", line, "forward"),)
        address = 4 * MiB * (1 + len(self.sizes))
        self.sizes[name] = address, size
        self.builder.event(Action.ALLOC, address, size, stack=stack, moment=Moment(self.phase, 0, 0))
        return self

    def free(self, *names: str) -> Program:
        for name in names:
            address, size = self.sizes[name]
            for action in (Action.FREE_REQUESTED, Action.FREE_COMPLETED):
                self.builder.event(action, address, size, moment=Moment(self.phase, 0, 0))
        return self

    @property
    def timeline(self) -> Timeline:
        return Timeline.of(self.builder.build(), ())


def layers(root: str = ROOT) -> Program:
    program = Program(root)
    for layer in range(4):
        program.alloc(f"saved {layer}", 8 * MiB, 10).alloc(f"scratch {layer}", 2 * MiB, 11).free(f"scratch {layer}")
    return program


def test_the_same_program_elsewhere_is_the_same():
    alignment = align_events(layers().timeline, layers("/mnt/other/place/repo").timeline)
    assert (alignment.same, alignment.rows, alignment.first) == (8, (), None)
    assert align_headline(alignment).startswith("THE SAME: 8 allocations")


def test_an_allocation_that_only_one_side_has():
    plain, more = Program(), Program()
    for program in (plain, more):
        program.alloc("weights", 64 * MiB, 1)
    plain.alloc("out", 8 * MiB, 20)
    more.alloc("workspace", 3 * MiB, 20).alloc("out", 8 * MiB, 20).free("workspace")
    for program in (plain, more):
        program.alloc("last", MiB, 30)
    alignment = align_events(plain.timeline, more.timeline)
    assert (alignment.same, alignment.only_before, alignment.only_after) == (3, 0, 1)
    (row,) = alignment.rows
    assert (row.kind, row.count, row.at_peak, row.delta_bytes) == ("only_after", 1, 1, 3 * MiB)
    assert (row.phase, row.site.line) == ("forward", 20)
    assert alignment.delta_bytes == 3 * MiB
    back = align_events(more.timeline, plain.timeline)
    assert [(row.kind, row.count) for row in back.rows] == [("only_before", 1)]


def test_an_allocation_of_another_size_is_one_and_the_same():
    old, new = layers().alloc("logits", 16 * MiB, 40), layers().alloc("logits", 32 * MiB, 40)
    alignment = align_events(old.timeline, new.timeline)
    (row,) = alignment.rows
    assert (row.kind, row.before_bytes, row.after_bytes, row.delta_bytes) == ("resized", 16 * MiB, 32 * MiB, 16 * MiB)
    assert alignment.first is not None
    assert alignment.first.kind == "resized"


def test_a_line_that_moved_is_the_same():
    old, new = layers().alloc("logits", 16 * MiB, 40), layers().alloc("logits", 16 * MiB, 77)
    assert align_events(old.timeline, new.timeline).rows == ()


def test_what_is_freed_later_counts_where_it_matters():
    early = layers().alloc("late", 16 * MiB, 40).free("late").alloc("peak", 17 * MiB, 41)
    late = layers().alloc("late", 16 * MiB, 40).alloc("peak", 17 * MiB, 41)
    alignment = align_events(early.timeline, late.timeline)
    (row,) = alignment.rows
    assert (row.kind, row.delta_bytes, row.site.line) == ("freed_later", 16 * MiB, 40)
    (row,) = align_events(late.timeline, early.timeline).rows
    assert (row.kind, row.delta_bytes) == ("freed_earlier", -16 * MiB)


def test_phases_are_aligned_by_themselves_where_the_whole_is_too_different(monkeypatch):
    def program(noise: int) -> Program:
        made = Program()
        for phase in ("forward", "backward", "optimizer"):
            made.phase = phase
            for number in range(6):
                made.alloc(f"{phase} {number} {noise}", MiB * (1 + noise * 10 + number), 100 * noise + number)
            made.alloc(f"{phase} shared", 99 * MiB, 7)
        return made

    real = paired_events.common
    monkeypatch.setattr(paired_events, "common", lambda one, other: real(one, other, most_edits=13))
    alignment = align_events(program(1).timeline, program(2).timeline)
    assert alignment.same == 3
    monkeypatch.setattr(paired_events, "common", lambda one, other: real(one, other, most_edits=3))
    with pytest.raises(InputError, match="too different to be aligned"):
        align_events(program(1).timeline, program(2).timeline)


@given(recordings(), recordings())
def test_rows_sum_to_the_difference_at_the_peak(old, new):
    sides = [Timeline.of(trace, segments) for trace, segments, _ in (old, new)]
    alignment = align_events(*sides)
    assert sum(row.delta_bytes for row in alignment.rows) == alignment.delta_bytes
    assert alignment.peak.after_bytes == sides[1].requested_bytes_at(sides[1].peak_event())
    document = alignment.to_json()
    assert json.loads(json.dumps(document))["delta_bytes"] == alignment.delta_bytes


@given(recordings())
def test_a_recording_is_the_same_as_itself(recorded):
    trace, segments, _ = recorded
    alignment = align_events(Timeline.of(trace, segments), Timeline.of(trace, segments))
    assert (alignment.rows, alignment.only_before, alignment.only_after, alignment.resized) == ((), 0, 0, 0)


def shown(alignment: Alignment, rows: int = 12) -> str:
    console = Console(width=120, no_color=True)
    with console.capture() as captured:
        aligned = Aligned(before_file="a.pickle", after_file="b.pickle", devices=(alignment,))
        console.print(align_report(aligned, shown=rows))
    return captured.get()


def test_the_report_sums_what_it_cuts():
    old, new = Program(), Program()
    for number in range(9):
        old.alloc(f"{number}", MiB * (1 + number), number)
        new.alloc(f"{number}", MiB * (1 + number), number).alloc(f"more {number}", MiB, 50 + number)
    text = shown(align_events(old.timeline, new.timeline), rows=3)
    assert "B HAS 9.00 MiB MORE ALIVE AT ITS PEAK than A at the same place" in text
    assert "+6.00 MiB" in text
    assert "6 further rows" in text
    assert "First difference" in text
