"""A snapshot on disk: whole, packed as its name says, and its price told."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from oomscope.capture.writer import Written, write
from oomscope.snapshot.read.load import load_snapshot

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


def test_equal_documents_make_equal_files(tmp_path: Path) -> None:
    for name in ("a.pickle.gz", "b.pickle.gz"):
        write(document(10), tmp_path / name, since=0, max_entries=None, force=False)
    assert (tmp_path / "a.pickle.gz").read_bytes() == (tmp_path / "b.pickle.gz").read_bytes()


@pytest.mark.parametrize(
    ("ring", "said"),
    [
        (4000, "1,000 events (25 % of the ring), 2.00 KiB in 0.4 s"),
        (1000, "(the ring is full, older ones are lost: raise max_entries to keep more), 2.00 KiB"),
        (None, "1,000 events, 2.00 KiB"),
    ],
)
def test_the_price_is_told(ring: int | None, said: str) -> None:
    written = Written(path=Path("s.pickle"), seconds=0.42, file_bytes=2048, events=1000, max_entries=ring)
    assert said in str(written)
