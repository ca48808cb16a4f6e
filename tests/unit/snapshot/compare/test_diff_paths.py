"""Two paths are two files or two folders; each side is matched by the text of its own checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomscope.errors import InputError, SnapshotError, UsageError
from oomscope.snapshot.builder import TraceBuilder
from oomscope.snapshot.compare.diff_paths import Recorded, diff_paths
from oomscope.snapshot.trace import Action, Frame, Snapshot
from oomscope.snapshot.write import write_snapshot


def recorded(path: Path, *lines: tuple[int, int]) -> Path:
    """Write a snapshot of a program that allocates in lines of ``model.py``, each with its bytes."""
    builder = TraceBuilder(0)
    for row, (line, size) in enumerate(lines):
        stack = (Frame("/job/model.py", line, "forward"),)
        builder.event(Action.ALLOC, 0x7F00_0000_0000 + row * 2**32, size, stack=stack)
    path.parent.mkdir(exist_ok=True)
    write_snapshot(Snapshot(segments=(), traces=(builder.build(),)), path)
    return path


def checkout(folder: Path, *lines: str) -> Path:
    folder.mkdir()
    (folder / "model.py").write_text("\n".join(lines), encoding="utf-8")
    return folder


def test_two_files_are_compared(tmp_path: Path):
    files = recorded(tmp_path / "a.pickle", (1, 512)), recorded(tmp_path / "b.pickle", (1, 1024))
    found = diff_paths(*map(Recorded, files))
    assert (found.before_file, found.after_file) == tuple(map(str, files))
    assert [device.delta_bytes for device in found.devices] == [512]


def test_two_folders_are_compared_rank_by_rank(tmp_path: Path):
    for rank in range(2):
        recorded(tmp_path / "a" / f"rank{rank}.pickle", (1, 512))
        recorded(tmp_path / "b" / f"rank{rank}.pickle", (1, 512 + 512 * rank))
    found = diff_paths(Recorded(tmp_path / "a"), Recorded(tmp_path / "b"))
    assert [(device.rank, device.delta_bytes) for device in found.devices] == [(1, 512), (0, 0)]


@pytest.mark.parametrize("as_folders", [False, True], ids=["files", "folders"])
def test_each_side_has_a_checkout_of_its_own(tmp_path: Path, as_folders: bool):
    """By its bytes line 2 went to line 1; by its text to line 3, and each text is asked for its own side's lines."""
    old = checkout(tmp_path / "old", "import f", "x = f()")
    new = checkout(tmp_path / "new", "y = g()", "import f", "x = f()")
    before = recorded(tmp_path / "before" / "rank0.pickle", (2, 512))
    after = recorded(tmp_path / "after" / "rank0.pickle", (1, 512), (3, 4096))
    paths = (before.parent, after.parent) if as_folders else (before, after)

    def moved(*sources: Path | None) -> set[tuple[int | None, int]]:
        rows = diff_paths(*map(Recorded, paths, sources)).devices[0].lines
        return {(row.was and row.was.line, row.site.line) for row in rows}

    assert moved(None, None) == moved(old, None) == {(2, 1), (None, 3)}
    assert moved(old, new) == {(2, 3), (None, 1)}
    assert moved(new, old) == {(2, 1), (None, 3)}


def test_a_file_is_not_compared_with_a_folder(tmp_path: Path):
    file = recorded(tmp_path / "a.pickle", (1, 512))
    for sides in ((file, tmp_path), (tmp_path, file)):
        with pytest.raises(UsageError, match=r"is a folder and .*a\.pickle is not"):
            diff_paths(*map(Recorded, sides))


def test_what_is_amiss_is_named(tmp_path: Path):
    file = recorded(tmp_path / "a.pickle", (1, 512))
    with pytest.raises(InputError, match="is no folder"):
        diff_paths(Recorded(file, file), Recorded(file))
    with pytest.raises(InputError, match="nothing of device 3"):
        diff_paths(Recorded(file), Recorded(file), device=3)
    with pytest.raises(InputError, match="no phase warmup"):
        diff_paths(Recorded(file), Recorded(file), phase="warmup")
    with pytest.raises(SnapshotError, match=r"none\.pickle"):
        diff_paths(Recorded(file), Recorded(tmp_path / "none.pickle"))
