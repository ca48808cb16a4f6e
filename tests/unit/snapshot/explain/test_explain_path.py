"""A path is a file or a folder; what is asked reaches either, and what was analysed comes with what was found."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomscope.errors import SnapshotError, UsageError
from oomscope.snapshot.explain.explain import explain
from oomscope.snapshot.explain.explain_path import explain_path
from oomscope.snapshot.explain.explanation import Explanation
from oomscope.snapshot.explain.rank_set import RankSet
from oomscope.snapshot.read.limits import Limits
from oomscope.snapshot.read.load import load_snapshot
from oomscope.snapshot.write import write_snapshot
from oomscope.units import GiB, MiB
from tests.unit.snapshot.explain.test_explain import snapshot_of
from tests.unit.snapshot.machine import Machine


def written(path: Path, *sizes: int) -> Path:
    machine = Machine(GiB)
    for size in sizes:
        machine.alloc(size * MiB)
    path.parent.mkdir(exist_ok=True)
    write_snapshot(snapshot_of(machine), path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two ranks, of which the second holds more."""
    for rank, size in enumerate((40, 100)):
        written(tmp_path / "ranks" / f"rank{rank}.pickle", size)
    return tmp_path / "ranks"


def test_a_file_is_explained(tmp_path: Path):
    file = written(tmp_path / "snap.pickle", 30, 40)
    explained = explain_path(file)
    assert isinstance(explained.found, Explanation)
    assert explained.found.to_json() == explain(load_snapshot(file), file=str(file)).to_json()
    assert [each.recorded.device for each in explained.analyses] == [row.index for row in explained.found.devices]


def test_a_folder_is_explained_by_its_worst_rank(folder: Path):
    explained = explain_path(folder)
    assert isinstance(explained.found, RankSet)
    assert [row.rank for row in explained.found.rows] == [1, 0]
    [worst] = explained.analyses
    assert worst.timeline.requested_bytes_at(worst.timeline.peak_event()) == 100 * MiB


def test_a_card_that_is_named_counts_for_a_file_and_for_a_folder(folder: Path):
    for path, devices in (
        (folder / "rank1.pickle", lambda found: found.devices),
        (folder, lambda found: found.worst.devices),
    ):
        explained = explain_path(path, limit=64 * MiB, torch_version="2.6")
        [device] = devices(explained.found)
        assert (device.verdict.kind, device.is_predicted, device.torch_version) == ("capacity", True, "2.6")
        assert explained.analyses[0].cut_short is not None


@pytest.mark.parametrize("limits", [Limits(file=10), None], ids=["too large", "no snapshot"])
def test_what_cannot_be_read_is_refused(folder: Path, limits):
    if limits is None:
        for file in folder.iterdir():
            file.write_bytes(b"nothing")
    for path in (folder / "rank0.pickle", folder):
        with pytest.raises(SnapshotError, match=r"rank0\.pickle"):
            explain_path(path, limits=limits)


def test_a_device_that_is_not_there_is_refused(folder: Path):
    with pytest.raises(UsageError, match="nothing on device 3"):
        explain_path(folder / "rank0.pickle", device=3)
    with pytest.raises(SnapshotError, match="no file has anything on this device"):
        explain_path(folder, device=3)
