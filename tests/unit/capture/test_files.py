"""From a template to a file's name, and a snapshot on disk: whole, packed as its name says."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from oomscope.capture import names
from oomscope.capture.writer import Written, write
from oomscope.snapshot.read.load import load_snapshot

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_fields_are_filled_in() -> None:
    filled = names.fill("/out/{time}/{rank}-{pid}-{host}.pickle", rank="7", time=NOW)
    assert filled.parent == Path("/out/20260102T030405")
    assert filled.name.startswith(f"7-{os.getpid()}-")


@pytest.mark.parametrize(
    ("name", "tagged"),
    [
        ("snap-0.pickle", "snap-0.oom.pickle"),
        ("snap-0.pickle.gz", "snap-0.oom.pickle.gz"),
        ("v1.2/snap.0.pickle.zst", "v1.2/snap.0.oom.pickle.zst"),
        ("snapshot", "snapshot.oom"),
    ],
)
def test_a_tag_goes_before_the_ending(name: str, tagged: str) -> None:
    assert names.tagged(Path(name), "oom") == Path(tagged)


def test_a_taken_name_gets_a_number(tmp_path: Path) -> None:
    path = tmp_path / "s.pickle.gz"
    assert next(names.free_names(path)) == path
    path.touch()
    (tmp_path / "s.2.pickle.gz").touch()
    assert next(names.free_names(path)) == tmp_path / "s.3.pickle.gz"


@pytest.mark.parametrize(
    ("environment", "rank", "world"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, 3, 8),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "16"}, 5, 16),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}, 2, 4),
        ({"LOCAL_RANK": "1"}, 1, None),
        ({"RANK": "none"}, None, None),
        ({}, None, None),
    ],
)
def test_launchers_say_the_rank(environment, rank, world) -> None:
    assert names.rank_of_process(environment) == rank
    assert names.world_size_of_process(environment) == world


def test_the_process_group_knows_better(monkeypatch: pytest.MonkeyPatch) -> None:
    group = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 6, get_world_size=lambda: 9
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    assert names.rank_of_process({"RANK": "0"}) == 6
    assert names.world_size_of_process({"WORLD_SIZE": "1"}) == 9
    group.is_initialized = lambda: False
    assert names.rank_of_process({"RANK": "0"}) == 0


def test_processes_of_one_program_without_ranks_share_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert names.stand_in_rank() == "0"
    monkeypatch.setattr(multiprocessing, "parent_process", object)
    assert names.stand_in_rank() == f"p{os.getpid()}"


EVENT = {"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "frames": []}


def document(events: int) -> dict[str, object]:
    return {"segments": [], "device_traces": [[], [EVENT] * events]}


@pytest.mark.parametrize("ending", ["pickle", "pickle.gz", "pickle.zst"])
def test_packed_as_the_name_says(tmp_path: Path, ending: str) -> None:
    if ending.endswith("zst"):
        pytest.importorskip("zstandard")
    path = tmp_path / "folder" / f"s.{ending}"
    written = write(document(1000), path, since=time.perf_counter(), max_entries=4000, force=False)
    assert (written.path, written.events, written.file_bytes) == (path, 1000, path.stat().st_size)
    assert len(load_snapshot(path).traces[0]) == 1000
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("ring", "said"),
    [
        (4000, "1,000 events (25 % of the ring), 2.00 KiB in 0.4 s"),
        (1000, "(the ring is full, older ones are lost: raise max_entries to keep more), 2.00 KiB"),
        (None, "1,000 events, 2.00 KiB"),
    ],
)
def test_the_cost_of_writing_is_reported(ring: int | None, said: str) -> None:
    written = Written(path=Path("s.pickle"), seconds=0.42, file_bytes=2048, events=1000, max_entries=ring)
    assert said in str(written)
