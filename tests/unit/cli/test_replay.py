from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from oomscope.allocator import AllocatorSettings, Driver
from oomscope.cli.main import run
from oomscope.snapshot.read.load import load_snapshot
from oomscope.snapshot.replay.replay import segments_of
from oomscope.snapshot.trace import Action, Snapshot
from oomscope.snapshot.write import write_snapshot
from oomscope.units import GiB, MiB
from tests.caching_allocator import CachingAllocator
from tests.trace_builder import TraceBuilder

TITLE = "device 0 · 52 events · default settings"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A snapshot of 20 blocks in segments of 20 MiB, half of them freed, and then a large one."""
    allocator = CachingAllocator(AllocatorSettings.parse(""), Driver(4 * GiB))
    builder = TraceBuilder()
    blocks = [_alloc(allocator, builder, 8 * MiB) for _ in range(20)]
    for block in blocks[::2]:
        allocator.free(block)
        builder.event(Action.FREE_REQUESTED, block, 8 * MiB)
        builder.event(Action.FREE_COMPLETED, block, 8 * MiB)
    _alloc(allocator, builder, 100 * MiB)
    path = tmp_path / "snap.pickle"
    segments = segments_of(allocator.segments())
    write_snapshot(Snapshot(segments=segments, traces=(builder.build(),)), path)
    return path


def _alloc(allocator: CachingAllocator, builder: TraceBuilder, size: int) -> int:
    address = allocator.malloc(size).address
    for event in allocator.drain_events():
        builder.event(Action[event.action.upper()], event.address, event.size)
    builder.event(Action.ALLOC, address, size)
    return address


def test_rules_that_repeat_nothing_are_not_called_best(file: Path, tmp_path: Path, capsys) -> None:
    unlike = replace(load_snapshot(file), allocator_settings={"expandable_segments": True})
    path = write_snapshot(unlike, tmp_path / "unlike.pickle")
    assert run(["replay", str(path)]) == 0
    out = capsys.readouterr().out
    assert "Fidelity 0.000:" in " ".join(out.split())
    assert "Rules torch up to 2.11; none repeat it" in " ".join(out.split())


def test_differences_from_the_recording_are_reported_in_groups(file: Path, tmp_path: Path, capsys) -> None:
    unlike = replace(load_snapshot(file), allocator_settings={"expandable_segments": True})
    path = write_snapshot(unlike, tmp_path / "unlike.pickle")
    assert run(["replay", str(path)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "recorded segment_alloc 1 1 20.00 MiB unexplained" in text
    assert "recorded segment_alloc 10 4 280.00 MiB follows from event 1, whose block lies elsewhere" in text


def test_the_table_begins_with_the_answer(file: Path, capsys) -> None:
    assert run(["replay", str(file), "--conf", "expandable_segments:True"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0] == f"{file} · {TITLE}"
    assert lines[1].startswith(
        "expandable_segments:True reserves 40.00 MiB less: 260.00 MiB at most, instead of 300.00 MiB"
    )
    assert "1.000: 11 of 11 segment events repeated; 21 of 21 allocations at the recorded address" in out
    assert "packing lower bound" in out
    assert "Margin" not in out
    assert err == ""


def test_without_settings_those_worth_trying_are_tried(file: Path, capsys) -> None:
    assert run(["replay", str(file), "--limit", "295MiB"]) == 0
    out = capsys.readouterr().out
    assert (
        out.splitlines()[1]
        == "Under the recorded settings a request fails on this card; it passes under expandable_segments:True."
    )
    assert "max_split_size_mb:1024" in out
    assert "Margin" in out
    assert "295.00 MiB (a card of 295.00 MiB as given" in out


def test_settings_of_several_options_are_distinguished_from_several_settings(capsys) -> None:
    snapshot = Path(__file__).parents[3] / "fixtures" / "tour" / "snap-0.oom.pickle.gz"
    several = "max_split_size_mb:256,roundup_power2_divisions:8"
    assert run(["replay", str(snapshot), "--conf", "expandable_segments:True", "--conf", several]) == 0
    assert f" it passes under expandable_segments:True or {several}.\n" in capsys.readouterr().out


def test_one_document_is_printed(file: Path, capsys) -> None:
    assert run(["replay", str(file), "--conf", "max_split_size_mb:64", "--gpu", "t4", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["file"] == str(file)
    assert document["schema_version"] == 3
    assert [row["name"] for row in document["rows"]] == ["as recorded", "max_split_size_mb:64"]
    assert document["available_bytes"] == 14913 * MiB
    assert document["fidelity"]["mismatches"] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--conf", "max_split_size_mb:big"],
            "setting max_split_size_mb:big, column 19: expected a number but got 'big'",
        ),
        (["--conf", "backend:cudaMallocAsync"], "cannot be modelled"),
        (["--limit", "1GiB", "--gpu", "t4"], "both --limit 1GiB and --gpu t4; name one card"),
        (["--non-torch", "1GiB"], "--non-torch without a card"),
        (["--limit", "1GiB", "--non-torch", "1GiB"], "--non-torch 1GiB leaves nothing of 1.00 GiB; give less"),
        (["--gpu", "zx81"], "no card is called 'zx81'"),
        (["--device", "4"], "the file holds no trace of device 4; it has those of 0"),
        (["--torch-version", "two"], "is no torch version"),
        (
            ["--torch-version", "9.9"],
            "--torch-version: the allocator of torch 9.9 is not modelled; give",
        ),
    ],
)
def test_what_cannot_be_done_is_one_line(file: Path, capsys, words, message) -> None:
    assert run(["replay", str(file), *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert len(err.splitlines()) == 1


def test_a_file_without_a_trace_is_refused(tmp_path: Path, capsys) -> None:
    path = tmp_path / "empty.pickle"
    write_snapshot(Snapshot(segments=(), traces=()), path)
    assert run(["replay", str(path)]) == 2
    assert "holds no trace, so there is nothing to replay" in capsys.readouterr().err
