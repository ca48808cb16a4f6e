"""A difference of two snapshots: the answer first, and rows that sum to what is between the peaks."""

from __future__ import annotations

import pytest

from oomscope.report.commands.diff import diff_report, headline, line_name, line_table, place, remarks
from oomscope.snapshot.compare.changes import LineChange
from oomscope.snapshot.compare.diff import Named, diff
from oomscope.snapshot.sites import Site
from oomscope.snapshot.trace import Action, Block, Category, Frame, Moment, Snapshot
from oomscope.units import MiB
from tests.trace_builder import TraceBuilder
from tests.unit.report.differences import AFTER, BEFORE, EQUAL, GREW, TWO_DEVICES, snapshot
from tests.unit.report.printed import folded, printed
from tests.unit.snapshot.strategies import segment


def test_the_answer_comes_first_and_rows_say_what_became_of_each_line() -> None:
    lines = printed(diff_report(GREW)).splitlines()
    assert lines[2] == "THE PEAK GREW by 134.00 MiB: 770.00 MiB requested in A, 904.00 MiB in B"
    text = folded(diff_report(GREW))
    (device,) = GREW.devices
    assert "30.00 MiB 64.00 MiB +34.00 MiB 1 2 further lines" in folded([line_table(device.lines, shown=1)])
    for row in (
        "200.00 MiB 300.00 MiB +100.00 MiB 2 → 3 activation …/src/tinytrain/model.py:10→13 forward",
        "0 B 64.00 MiB +64.00 MiB 0 → 1 temporary …/src/tinytrain/model.py:40 loss (new)",
        "30.00 MiB 0 B -30.00 MiB 1 → 0 activation …/src/tinytrain/model.py:90 mask (gone)",
        "540.00 MiB 540.00 MiB 0 B 2 2 lines unchanged, 1 of them moved",
        "770.00 MiB 904.00 MiB +134.00 MiB 5 → 6 all",
    ):
        assert row in text


def test_lines_that_all_moved_are_reported_as_moved() -> None:
    (device,) = GREW.devices
    moved = tuple(row for row in device.lines if not row.differs and row.moved)
    assert "1 line unchanged, moved" in folded([line_table(moved, shown=1)])


@pytest.mark.parametrize(
    ("by", "row"),
    [
        ("category", "270.00 MiB 340.00 MiB +70.00 MiB 4 activation"),
        ("module", "530.00 MiB 564.00 MiB +34.00 MiB 2 (not known)"),
        ("size", "270.00 MiB 404.00 MiB +134.00 MiB 4 → 5 of 10 to 100 MiB"),
        ("line", "+64.00 MiB 0 → 1 temporary"),
    ],
)
def test_one_table_can_be_chosen(by, row: str) -> None:
    assert row in folded(diff_report(GREW, by=by))
    assert printed(diff_report(GREW, by=by)).count(" all\n") == 1


def test_equal_and_smaller_peaks_are_called_so() -> None:
    assert headline(EQUAL.devices[0]) == "THE PEAK IS EQUAL: 770.00 MiB requested, and of the same lines"
    rolled = ((10, 7, "roll", Category.ACTIVATION), (20, 8, "roll", Category.ACTIVATION))
    other = diff(Named("a", snapshot(BEFORE)), Named("b", snapshot((*BEFORE[:3], *rolled, *BEFORE[4:]))))
    assert headline(other.devices[0], "loss") == "THE PEAK IN LOSS IS EQUAL: 770.00 MiB requested, but of other lines"
    back = diff(Named("b", snapshot(AFTER)), Named("a", snapshot(BEFORE)))
    assert headline(back.devices[0]) == "THE PEAK SHRANK by 134.00 MiB: 904.00 MiB requested in A, 770.00 MiB in B"


def test_the_device_that_grew_most_is_shown_and_the_others_are_listed() -> None:
    text = folded(diff_report(TWO_DEVICES))
    assert text.index("device 1 770.00 MiB 904.00 MiB +134.00 MiB") < text.index("device 0 770.00 MiB 770.00 MiB 0 B")
    assert "Device 1, which grew most" in text


def test_remarks_say_what_the_tables_cannot() -> None:
    """One side ends in forward, for it failed there; the other has no recording at all."""
    builder = TraceBuilder()
    stack = (Frame("/src/model.py", 3, "forward"),)
    builder.event(Action.ALLOC, 0, 7 * MiB, stack=stack, moment=Moment("forward", 0, -1))
    builder.event(Action.OOM, 0, 9 * MiB)
    failed = Snapshot(segments=(), traces=(builder.build(),))
    (device,) = diff(Named("a", snapshot(BEFORE)), Named("b", failed)).devices
    assert list(remarks(device)) == [
        "the peak moved from optimizer to forward, where other things are live; --phase forward compares what is alike",
        "B failed asking for 9.00 MiB; its peak does not contain that request",
        "categories and phases of B are inferred from stacks and lifetimes",
    ]
    block = Block(address=0, size=MiB, requested_size=MiB, state="active_allocated")
    bare = Snapshot(segments=(segment(2 * MiB, block),), traces=(TraceBuilder().build(),))
    (device,) = diff(Named("a", bare), Named("b", snapshot(BEFORE))).devices
    assert next(remarks(device)) == "A holds no events: its memory at the end is taken as its peak"
    assert place(device.before) == "at the end"
    assert device.before.overhead_at_peak_bytes == MiB


@pytest.mark.parametrize(
    ("function", "shown"),
    [
        ("(alive before the recording began)", "(alive before the recording began)"),
        ("sum (operator, C++)", "sum (operator, C++) (gone)"),
    ],
)
def test_what_stands_for_unknown_lines_is_neither_new_nor_gone(function: str, shown: str) -> None:
    row = LineChange(
        site=Site(file="", line=0, function=function),
        was=None,
        category="unknown",
        presence="gone",
        before_bytes=5,
        after_bytes=0,
        before_count=1,
        after_count=0,
    )
    assert line_name(row) == shown
