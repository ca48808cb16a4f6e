"""Compare two folders of snapshots, one file a rank, rank by rank. Two ranks are in memory at a time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from oomscope.errors import InputError, SnapshotError
from oomscope.snapshot.comparing.diff import DeviceDifference, Difference, Named, diff, worst_first
from oomscope.snapshot.comparing.matching import Text, no_text
from oomscope.snapshot.reading.limits import Limits
from oomscope.snapshot.reading.load import load_snapshot
from oomscope.snapshot.reading.rank_files import Unread, rank_numbers, snapshot_files


def diff_ranks(
    before: Path,
    after: Path,
    *,
    device: int | None = None,
    phase: str = "",
    before_text: Text = no_text,
    after_text: Text = no_text,
    limits: Limits | None = None,
) -> Difference:
    """Return what grew from one folder to another, the rank and device that grew most first.

    Which file is which rank is told by the files' names (:mod:`oomscope.snapshot.reading.rank_files`).

    Args:
        before: the first folder, A.
        after: the second, B.
        device: compare this device of each rank alone.
        phase: compare the peaks inside this phase.
        before_text: the first side's source, where it is at hand.
        after_text: the second side's.
        limits: what reading a file may take.

    Raises:
        SnapshotError: a folder holds no snapshot, or of each rank there is a file that cannot be read or trusted.
        InputError: the folders have no rank in common, or two files of a rank cannot be compared.
    """
    old, new = _by_rank(before), _by_rank(after)
    common = [rank for rank in old if rank in new]
    if not common:
        raise InputError(f"no rank in common with {after}", where=str(before), remedy="name the files by rank alike")
    found: list[DeviceDifference] = []
    unread: list[Unread] = []
    for rank in common:
        sides: list[Named] = []
        for file, text in ((old[rank], before_text), (new[rank], after_text)):
            try:
                sides.append(Named(str(file), load_snapshot(file, limits=limits), text))
            except SnapshotError as error:
                if not found and rank == common[-1]:
                    raise
                unread.append(Unread.because(error, file))
        if len(sides) == 2:
            found += [replace(row, rank=rank) for row in diff(*sides, device=device, phase=phase).devices]
    return Difference(
        before_file=str(before),
        after_file=str(after),
        phase=phase,
        devices=worst_first(found),
        only_before=tuple(sorted(old.keys() - new.keys())),
        only_after=tuple(sorted(new.keys() - old.keys())),
        unread=tuple(unread),
    )


def _by_rank(folder: Path) -> dict[int, Path]:
    files = snapshot_files(folder)
    return dict(sorted(zip(rank_numbers([file.name for file in files]), files, strict=True)))
