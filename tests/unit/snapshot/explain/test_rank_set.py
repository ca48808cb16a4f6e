"""A folder of snapshots, one a rank: which file is which, who is worst, and who is not like the others."""

from __future__ import annotations

import json
import lzma
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from oomscope.errors import InputError, SnapshotError, UsageError
from oomscope.report.commands.diff import not_compared
from oomscope.report.sentences import left_out_texts
from oomscope.snapshot.compare.diff import diff_paths
from oomscope.snapshot.explain.explain_path import explain_path
from oomscope.snapshot.explain.rank_set import RankRow, stragglers_of
from oomscope.snapshot.provenance import Provenance
from oomscope.snapshot.read.limits import Limits
from oomscope.snapshot.read.load import load_snapshot
from oomscope.snapshot.read.rank_files import rank_files, rank_numbers
from oomscope.snapshot.trace import Snapshot
from oomscope.snapshot.write import write_snapshot
from oomscope.units import Bytes, GiB, MiB
from tests.unit.snapshot.explain.test_explain import snapshot_of
from tests.unit.snapshot.explained import explain
from tests.unit.snapshot.machine import Machine


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (["snap-0.pickle", "snap-1.pickle", "snap-10.pickle"], [0, 1, 10]),
        (["rank3_snapshot_0.pickle", "rank7_snapshot_0.pickle"], [3, 7]),
        (["h100-a-2026-rank_1.pkl.gz", "h100-b-2026-rank_0.pkl.gz"], [1, 0]),
        (["snapshot_2_of_8.pickle", "snapshot_3_of_8.pickle"], [2, 3]),
        (["a.pickle", "b.pickle"], [None, None]),
        (["rank1-a.pickle", "rank1-b.pickle"], [1, 1]),
        (["snap-0.mid-2.pickle", "snap-0.step4.pickle", "snap-3.oom.pickle.gz", "snap-0.2.pickle.xz"], [0, 0, 3, 0]),
        (["run-a.step2.pickle", "run-a.step4.pickle", "run-a.oom.2.pickle"], [0, 0, 0]),
        (["run7-1.step2.pickle", "run7-2.pickle", "run7-1.pickle"], [1, 2, 1]),
        (["oom_rank-1_snap.pickle", "snap.pickle"], [1, None]),
        (["torch-2.0.pickle", "tinytrain.pickle"], [None, None]),
        (["lowrank8_run0.pickle", "lowrank8_run1.pickle"], [0, 1]),
        (["node.alpha.pickle", "node.beta.pickle"], [None, None]),
        (["run1.pickle", "run1.last.pickle", "run2.pickle"], [1, 1, 2]),
    ],
)
def test_ranks_are_read_from_names(names, ranks):
    assert rank_numbers(names) == ranks


def test_of_a_rank_the_latest_step_comes_first(tmp_path: Path) -> None:
    for name in ("rank1_step5", "rank0_step9", "rank0_step10", "rank0.oom"):
        (tmp_path / f"{name}.pickle").touch()
    ordered = [file.path.stem for file in rank_files(tmp_path)]
    assert ordered == ["rank0.oom", "rank0_step10", "rank0_step9", "rank1_step5"]


def machine(total: int, *sizes: int) -> Machine:
    made = Machine(total)
    for size in sizes:
        made.alloc(size * MiB)
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Rank 1 needs most, but rank 2 fails."""
    for rank, made in enumerate((machine(GiB, 100), machine(GiB, 300), machine(64 * MiB, 40, 100))):
        write_snapshot(snapshot_of(made), tmp_path / f"snap-{rank}.pickle")
    return tmp_path


def test_a_rank_that_failed_is_worse_than_one_that_needs_more(folder):
    found = explain_path(folder).found
    assert [row.rank for row in found.rows] == [2, 1, 0]
    assert found.rows[0].failed_bytes == 100 * MiB
    assert found.worst.rank == 2
    assert found.worst.devices[0].verdict.kind == "capacity"
    json.dumps(found.to_json(), allow_nan=False)


def test_what_a_recording_says_of_its_rank_counts(tmp_path: Path):
    write_snapshot(snapshot_of(machine(GiB, 100), provenance=Provenance(rank=5)), tmp_path / "snap-0.pickle")
    found = explain_path(tmp_path).found
    assert ([row.rank for row in found.rows], found.worst.rank) == ([5], 5)


@pytest.mark.parametrize("is_told", [True, False])
def test_one_file_of_each_rank_is_taken(folder: Path, is_told: bool):
    """That of a failure, else that of the end, else that of the latest step."""
    made = {"snap-0.step9": 500, "snap-2.oom": 90, "snap-3.step9": 20, "snap-3.step100": 30, "snap-3.mid": 40}
    for name, size in made.items():
        rank = Provenance(rank=int(name[5])) if is_told else None
        total = 64 * MiB if "oom" in name else GiB
        write_snapshot(snapshot_of(machine(total, size), provenance=rank), folder / f"{name}.pickle")
        plain = folder / f"{name}.pickle"
        plain.with_suffix(".pickle.xz").write_bytes(lzma.compress(plain.read_bytes()))
        plain.unlink()
    found = explain_path(folder).found
    taken = {row.rank: Path(row.file).name for row in found.rows}
    assert taken == {0: "snap-0.pickle", 1: "snap-1.pickle", 2: "snap-2.oom.pickle.xz", 3: "snap-3.step100.pickle.xz"}
    left = ["snap-0.step9.pickle.xz", "snap-2.pickle", "snap-3.mid.pickle.xz", "snap-3.step9.pickle.xz"]
    assert [Path(each.file).name for each in found.left_out] == left
    assert [each.rank for each in found.left_out] == [0, 2, 3, 3]
    *_, said = left_out_texts(found.left_out)
    assert said == "left out: snap-3.mid.pickle.xz, snap-3.step9.pickle.xz; another file of rank 3 was taken"
    peaks = {row.rank: row.peak for row in found.rows}
    compared = diff_paths(folder, folder)
    assert {row.rank: row.after.peak for row in compared.devices} == peaks
    assert len(list(not_compared(compared))) == 3


def test_files_of_which_nothing_says_the_rank_are_refused(folder: Path):
    for number, name in enumerate(("a", "other", "third-1")):
        (folder / f"snap-{number}.pickle").rename(folder / f"{name}.pickle")
    with pytest.raises(SnapshotError, match="neither file names nor recordings give the ranks"):
        explain_path(folder)
    with pytest.raises(SnapshotError, match="file names give no ranks"):
        diff_paths(folder, folder)
    write_snapshot(snapshot_of(machine(GiB, 100), provenance=Provenance(rank=5)), folder / "told.pickle")
    found = explain_path(folder).found
    assert ([row.rank for row in found.rows], {each.rank for each in found.left_out}) == ([5], {None})


ALIKE = RankRow(
    rank=0,
    file="snap.pickle",
    device=0,
    events=100,
    failed_bytes=None,
    peak=Bytes(requested_bytes=100 * MiB, reserved_bytes=120 * MiB),
    overhead_at_peak_bytes=20 * MiB,
    end_requested_bytes=50 * MiB,
    iterations=4,
    last_time_us=10_000_000,
    categories={"activation": 100 * MiB},
)
ALL_ALIKE = [replace(ALIKE, rank=rank) for rank in range(5)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"peak": Bytes(requested_bytes=120 * MiB, reserved_bytes=120 * MiB)},
            "needs 20% more at its peak than the middle rank",
        ),
        (
            {"peak": Bytes(requested_bytes=90 * MiB, reserved_bytes=120 * MiB)},
            "needs 10% less at its peak than the middle rank",
        ),
        ({"iterations": 2}, "shows 2 iterations, the middle rank 4"),
        ({"last_time_us": 4_500_000}, "recorded its last event 5.5 s before the middle rank"),
    ],
)
def test_the_one_that_is_not_like_the_others_is_named(change, said):
    rows = [*ALL_ALIKE[:3], replace(ALL_ALIKE[3], **change), ALL_ALIKE[4]]
    [straggler] = stragglers_of(rows)
    assert (straggler.rank, straggler.text) == (3, said)


def test_ranks_that_are_alike_have_no_stragglers():
    assert list(stragglers_of(ALL_ALIKE)) == []
    assert list(stragglers_of(ALL_ALIKE[:2])) == []


def test_a_file_that_cannot_be_read_costs_its_rank_alone(folder: Path):
    (folder / "snap-1.pickle").write_bytes((folder / "snap-1.pickle").read_bytes()[:-20])
    found = explain_path(folder).found
    assert [row.rank for row in found.rows] == [2, 0]
    [unread] = found.unread
    assert Path(unread.file).name == "snap-1.pickle"
    assert "not a readable pickle" in unread.reason
    assert found.to_json()["unread"] == [{"file": unread.file, "reason": unread.reason}]


def test_a_folder_in_which_nothing_can_be_read_is_refused(tmp_path: Path):
    for rank in range(2):
        (tmp_path / f"snap-{rank}.pickle").write_bytes(b"nothing")
    with pytest.raises(SnapshotError, match=r"snap-0\.pickle: text, neither a pickle"):
        explain_path(tmp_path)


def test_a_rank_without_the_device_is_named(folder: Path):
    trace = replace(machine(GiB, 100).trace(), device=1)
    write_snapshot(Snapshot(segments=(), traces=(trace,)), folder / "snap-3.pickle")
    found = explain_path(folder, device=1).found
    assert [row.rank for row in found.rows] == [3]
    assert [(each.rank, each.text) for each in found.stragglers] == [
        (rank, "has nothing on device 1") for rank in range(3)
    ]


@pytest.mark.parametrize("damaged", [0, 2])
def test_folders_are_compared_without_the_ranks_that_cannot_be_read(folder: Path, tmp_path: Path, damaged):
    other = tmp_path / "other"
    shutil.copytree(folder, other, ignore=lambda *_: ["other"])
    (other / f"snap-{damaged}.pickle").write_bytes(b"nothing")
    found = diff_paths(folder, other)
    assert sorted({row.rank for row in found.devices}) == sorted({0, 1, 2} - {damaged})
    assert [Path(each.file).name for each in found.unread] == [f"snap-{damaged}.pickle"]
    assert any("cannot be read" in remark for remark in not_compared(found))
    for file in other.iterdir():
        file.rename(file.with_name(file.name.replace("snap-", "snap-9")))
    with pytest.raises(InputError, match="no rank in common"):
        diff_paths(folder, other)


def test_a_file_is_explained_and_a_folder_by_its_worst_rank(folder: Path):
    file = folder / "snap-1.pickle"
    explained = explain_path(file)
    assert explained.found.to_json() == explain(load_snapshot(file), file=str(file)).to_json()
    assert [each.recorded.device for each in explained.analyses] == [row.index for row in explained.found.devices]
    for path, devices in ((file, lambda found: found.devices), (folder, lambda found: found.worst.devices)):
        explained = explain_path(path, limit=64 * MiB, torch_version="2.6")
        [device] = devices(explained.found)
        assert (device.verdict.kind, device.is_predicted, device.torch_version) == ("capacity", True, "2.6")
        assert explained.analyses[0].cut_short is not None


def test_a_device_that_is_not_there_is_refused(folder: Path):
    with pytest.raises(UsageError, match="nothing on device 3"):
        explain_path(folder / "snap-0.pickle", device=3)
    with pytest.raises(SnapshotError, match="no file has anything on this device"):
        explain_path(folder, device=3)
    with pytest.raises(SnapshotError, match=r"snap-0\.pickle"):
        explain_path(folder, limits=Limits(file=10))
