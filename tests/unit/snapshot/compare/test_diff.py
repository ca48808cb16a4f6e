"""Differences of snapshots: sums are exact, the way back is the way there, and what only moved has not changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.errors import InputError, UsageError
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.compare.diff import DeviceDifference, Named, diff, diff_paths
from oomscope.snapshot.trace import Action, Category, Frame, Moment, Snapshot
from oomscope.snapshot.write import write_snapshot
from tests.trace_builder import TraceBuilder
from tests.unit.snapshot.strategies import recordings


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    trace, segments, _ = draw(recordings())
    return Snapshot(segments=segments, traces=(trace,))


def compare(before: Snapshot, after: Snapshot) -> DeviceDifference:
    (device,) = diff(Named("a", before), Named("b", after)).devices
    return device


def tables(device: DeviceDifference):
    return device.lines, device.categories, device.modules, device.sizes


@given(snapshots(), snapshots())
def test_every_table_sums_to_both_peaks(before, after):
    found = diff(Named("a", before), Named("b", after))
    json.dumps(found.to_json(), allow_nan=False)
    (device,) = found.devices
    for rows in tables(device):
        assert sum(row.before_bytes for row in rows) == device.before.peak.requested_bytes
        assert sum(row.after_bytes for row in rows) == device.after.peak.requested_bytes
        assert sum(row.delta_bytes for row in rows) == device.delta_bytes
        assert sum(row.before_count for row in rows) == device.before.blocks
        assert sum(row.after_count for row in rows) == device.after.blocks
    for side, snapshot in ((device.before, before), (device.after, after)):
        timeline = Timeline.of(snapshot.traces[0], snapshot.segments)
        assert side.peak.requested_bytes == max([timeline.initial_requested_bytes, *timeline.requested.tolist()])


@given(snapshots())
def test_a_snapshot_does_not_differ_from_itself(snapshot):
    device = compare(snapshot, snapshot)
    assert device.is_empty
    assert not any(row.moved for row in device.lines)
    assert device.before == device.after
    assert device.timeline.before == device.timeline.after


def recorded(*allocations: tuple[int, int, str], device: int = 0, category: Category = Category.UNKNOWN) -> Snapshot:
    """Return a snapshot of blocks by size, line and phase, each alive to the end."""
    builder = TraceBuilder(device)
    for index, (size, line, phase) in enumerate(allocations):
        stack = (Frame("/src/train.py", line, "step"),)
        builder.event(
            Action.ALLOC,
            512 * index,
            size,
            stack=stack,
            moment=Moment(phase, 0 if phase else -1, -1),
            category=category,
        )
    return Snapshot(segments=(), traces=(builder.build(),))


def test_a_line_that_moved_and_grew_is_one_row():
    device = compare(recorded((100, 7, "forward")), recorded((160, 9, "loss"), (40, 9, "loss")))
    (row,) = device.lines
    assert (row.was.line, row.site.line, row.moved) == (7, 9, True)
    assert (row.delta_bytes, row.delta_count) == (100, 1)
    assert (device.before.phase, device.after.phase) == ("forward", "loss")
    assert [(each.name, each.before_bytes, each.after_bytes) for each in device.phases] == [
        ("forward", 100, None),
        ("loss", None, 200),
    ]


def test_equal_layers_are_one_row():
    def layers(count: int) -> Snapshot:
        builder = TraceBuilder()
        for layer in range(count):
            stack = (Frame("/src/model.py", 3, "forward"),)
            builder.event(Action.ALLOC, 512 * layer, 10, stack=stack, module=f"model.layers.{layer}.mlp")
        return Snapshot(segments=(), traces=(builder.build(),))

    device = compare(layers(4), layers(6))
    (module,), (line,) = device.modules, device.lines
    assert (module.name, module.delta_bytes, module.before_count, module.after_count) == (
        "model.layers.*.mlp",
        20,
        4,
        6,
    )
    assert line.site.module == "model.layers.*.mlp"


def test_the_device_that_grew_most_comes_first():
    def two(first: int, second: int) -> Snapshot:
        pair = recorded((first, 1, "")), recorded((second, 1, ""), device=1)
        return Snapshot(segments=(), traces=tuple(trace for each in pair for trace in each.traces))

    found = diff(Named("a", two(10, 10)), Named("b", two(15, 40)))
    assert [(row.after.device, row.delta_bytes) for row in found.devices] == [(1, 30), (0, 5)]
    (only,) = diff(Named("a", two(10, 10)), Named("b", two(15, 40)), device=0).devices
    assert only.after.device == 0
    half = diff(Named("a", recorded((10, 1, ""))), Named("b", two(15, 40)))
    assert (half.only_before, half.only_after) == ((), (1,))


@pytest.mark.parametrize(
    ("before", "device", "message"),
    [
        (recorded((1, 1, "")), 3, "a: it holds nothing of device 3; it has device 0"),
        (Snapshot(segments=(), traces=()), None, "no device in common: no device in a, device 0 in b"),
    ],
)
def test_what_cannot_be_compared_is_reported(before, device, message):
    with pytest.raises(InputError, match=message):
        diff(Named("a", before), Named("b", recorded((1, 1, ""))), device=device)


def test_peaks_inside_one_phase_are_compared():
    before = recorded((100, 7, "forward"), (50, 8, "backward"))
    after = recorded((100, 7, "forward"), (10, 7, "forward"), (50, 8, "backward"))
    (device,) = diff(Named("a", before), Named("b", after), phase="forward").devices
    assert (device.before.peak.requested_bytes, device.after.peak.requested_bytes, device.after.phase) == (
        100,
        110,
        "forward",
    )
    assert sum(row.delta_bytes for row in device.lines) == 10
    with pytest.raises(InputError, match="a: device 0 has no phase optimizer; it has forward, backward"):
        diff(Named("a", before), Named("b", after), phase="optimizer")


def iterations(lengths: list[int], peak: int) -> Snapshot:
    """Return a snapshot in which the last iteration's last event is the peak; iteration -1 is the first stretch."""
    builder = TraceBuilder()
    address = 0
    for iteration, length in enumerate(lengths, start=-1):
        for index in range(length):
            last = iteration == len(lengths) - 2 and index == length - 1
            address += 512
            builder.event(Action.ALLOC, address, peak if last else 1, moment=Moment("forward", iteration, -1))
    return Snapshot(segments=(), traces=(builder.build(),))


def test_curves_are_laid_over_each_other_by_iteration():
    device = compare(iterations([4, 50, 50], 1000), iterations([90, 9, 7], 5000))
    lines = device.timeline
    assert lines.aligned_by == "iteration"
    assert [stretch.name for stretch in lines.stretches] == ["before the first iteration", "iteration 0", "iteration 1"]
    assert [stretch.start for stretch in lines.stretches] == pytest.approx([0, 1 / 3, 2 / 3])
    third = len(lines.before) // 3
    assert len(lines.before) == len(lines.after)
    assert max(lines.before[:third]) == 4
    assert max(lines.after[:third]) == 90
    assert (max(lines.before), max(lines.after)) == (1103, 5105)


# --- what two paths name ----------------------------------------


def written(path: Path, *lines: tuple[int, int]) -> Path:
    """Write a snapshot of a program that allocates in lines of ``model.py``, each with its bytes."""
    builder = TraceBuilder(0)
    for row, (line, size) in enumerate(lines):
        stack = (Frame("/job/model.py", line, "forward"),)
        builder.event(Action.ALLOC, 0x7F00_0000_0000 + row * 2**32, size, stack=stack)
    path.parent.mkdir(exist_ok=True)
    write_snapshot(Snapshot(segments=(), traces=(builder.build(),)), path)
    return path


def test_two_folders_are_compared_rank_by_rank(tmp_path: Path):
    for rank in range(2):
        written(tmp_path / "a" / f"rank{rank}.pickle", (1, 512))
        written(tmp_path / "b" / f"rank{rank}.pickle", (1, 512 + 512 * rank))
    found = diff_paths(tmp_path / "a", tmp_path / "b")
    assert [(device.rank, device.delta_bytes) for device in found.devices] == [(1, 512), (0, 0)]


def test_a_file_is_not_compared_with_a_folder(tmp_path: Path):
    file = written(tmp_path / "a.pickle", (1, 512))
    for sides in ((file, tmp_path), (tmp_path, file)):
        with pytest.raises(UsageError, match=r"is a folder and .*a\.pickle is not"):
            diff_paths(*sides)
