"""Compare what two paths name: two snapshot files, or two folders with one file a rank; each with its checkout.

Compare two folders of snapshots, one file a rank, rank by rank. Two ranks are in memory at a time. Files are read in
pairs by their names. Where recordings tell of other ranks than the names do, such files are read again, in the pairs
that the recordings tell.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

from oomscope.errors import InputError, SnapshotError, UsageError
from oomscope.snapshot.compare.aligned import Aligned, align
from oomscope.snapshot.compare.diff import DeviceDifference, Difference, Named, diff, worst_first
from oomscope.snapshot.compare.matching import Text, no_text
from oomscope.snapshot.compare.sources import text_of
from oomscope.snapshot.read.limits import Limits
from oomscope.snapshot.read.load import load_snapshot
from oomscope.snapshot.read.rank_files import Unread, ranks_of, snapshot_files, told_rank


def diff_ranks(
    before: Path,
    after: Path,
    *,
    device: int | None = None,
    phase: str = "",
    before_text: Text = no_text,
    after_text: Text = no_text,
    limits: Limits | None = None,
    announce: Callable[[str, int, int], None] = lambda _stage, _done, _total: None,
) -> Difference:
    """Return what grew from one folder to another, the rank and device that grew most first.

    Which file is which rank is told as ``oomscope explain`` tells it
    (:func:`~oomscope.snapshot.read.rank_files.ranks_of`).

    Args:
        before: the first folder, A.
        after: the second, B.
        device: compare this device of each rank alone.
        phase: compare the peaks inside this phase.
        before_text: the first side's source, where it is at hand.
        after_text: the second side's.
        limits: what reading a file may take.
        announce: is told what is done, and of how many pairs of files how many are.

    Raises:
        SnapshotError: a folder holds no snapshot, or of each rank there is a file that cannot be read or trusted.
        InputError: the folders have no rank in common, or two files of a rank cannot be compared.
    """
    folders = _Folders(_Folder(before, before_text, limits), _Folder(after, after_text, limits), device, phase)
    folders.compare_by_name(announce)
    folders.read_those_alone()
    found = [replace(row, rank=rank) for rank, rows in folders.by_rank() for row in rows]
    refusals = folders.old.refusals | folders.new.refusals
    if not found:
        raise next(iter(refusals.values()), _nothing_in_common(before, after))
    old_ranks, new_ranks = (set(ranks.values()) for ranks in folders.ranks())
    return Difference(
        before_file=str(before),
        after_file=str(after),
        phase=phase,
        devices=worst_first(found),
        only_before=tuple(sorted(old_ranks - new_ranks)),
        only_after=tuple(sorted(new_ranks - old_ranks)),
        unread=tuple(Unread.because(error, file) for file, error in refusals.items()),
    )


class _Folder:
    """The files of one side, and what is known of them since they were read."""

    def __init__(self, directory: Path, text: Text, limits: Limits | None) -> None:
        self._text = text
        self._limits = limits
        self.told = dict.fromkeys(snapshot_files(directory), -1)
        """The rank that each recording says it is of; -1 where it says none, or was not read."""
        self.refusals: dict[Path, SnapshotError] = {}

    def read(self, file: Path) -> Named | None:
        """Return a file's snapshot; None where it cannot be read, which is noted."""
        if file in self.refusals:
            return None
        try:
            snapshot = load_snapshot(file, limits=self._limits)
        except SnapshotError as error:
            self.refusals[file] = error
            return None
        self.told[file] = told_rank(snapshot)
        return Named(str(file), snapshot, self._text)


class _Folders:
    """Two folders, whose files are compared in pairs: first as their names pair them, then as recordings do."""

    def __init__(self, old: _Folder, new: _Folder, device: int | None, phase: str) -> None:
        self.old = old
        self.new = new
        self._device = device
        self._phase = phase
        self._compared: dict[_Pair, tuple[DeviceDifference, ...]] = {}

    def compare_by_name(self, announce: Callable[[str, int, int], None]) -> None:
        """Read the files that names pair; compare those of which recordings say the same rank."""
        named = self._named()
        for done, (before, after) in enumerate(named):
            announce("rank", done, len(named))
            sides = self.old.read(before), self.new.read(after)
            if self.old.told[before] == self.new.told[after]:
                self._compared[before, after] = self._compare(*sides)

    def read_those_alone(self) -> None:
        """Ask recordings for their rank whose names have no counterpart, where either side has such."""
        pairs = self._named()
        alone = (
            self.old.told.keys() - {before for before, _ in pairs},
            self.new.told.keys() - {after for _, after in pairs},
        )
        if all(alone):
            for folder, files in zip((self.old, self.new), alone, strict=True):
                for file in sorted(files):
                    folder.read(file)

    def ranks(self) -> tuple[dict[Path, int], ...]:
        """Return the rank of each file of either side, as far as recordings were read."""
        return ranks_of(self.old.told, self.new.told)

    def by_rank(self) -> Iterator[tuple[int, tuple[DeviceDifference, ...]]]:
        """Yield each rank that both sides have, with its devices."""
        for rank, pair in _pairs(*self.ranks()).items():
            if pair not in self._compared:
                self._compared[pair] = self._compare(self.old.read(pair[0]), self.new.read(pair[1]))
            yield rank, self._compared[pair]

    def _named(self) -> Collection[_Pair]:
        """Return the files that have the same rank by their names alone."""
        return _pairs(*ranks_of(dict.fromkeys(self.old.told, -1), dict.fromkeys(self.new.told, -1))).values()

    def _compare(self, before: Named | None, after: Named | None) -> tuple[DeviceDifference, ...]:
        """Return what grew from one file to the other; nothing where one of them cannot be read."""
        return diff(before, after, device=self._device, phase=self._phase).devices if before and after else ()


_Pair: TypeAlias = tuple[Path, Path]


def _pairs(old: Mapping[Path, int], new: Mapping[Path, int]) -> dict[int, _Pair]:
    """Return the files of each rank that both sides have."""
    after = {rank: file for file, rank in new.items()}
    return {rank: (file, after[rank]) for file, rank in sorted(old.items(), key=_rank) if rank in after}


def _rank(item: tuple[Path, int]) -> int:
    return item[1]


def _nothing_in_common(before: Path, after: Path) -> InputError:
    return InputError(f"no rank in common with {after}", where=str(before), remedy="name the files by rank alike")


Announce = Callable[[str, int, int], None]
"""Told what begins, and how many of how many are done where that is counted."""


class Recorded(NamedTuple):
    """One side."""

    path: Path
    source: Path | None = None
    """The checkout that was recorded, by whose text lines are matched; None where it is not at hand."""


def diff_paths(
    before: Recorded,
    after: Recorded,
    *,
    device: int | None = None,
    phase: str = "",
    limits: Limits | None = None,
    announce: Announce = lambda _stage, _done, _total: None,
) -> Difference:
    """Return what grew from ``before`` to ``after``; other arguments are those of ``diff`` and ``load_snapshot``.

    ``announce`` is told what begins, with how many of how many are done where that is counted.

    Raises:
        UsageError: one is a folder, the other a file.
        InputError: a checkout is no folder, or there is nothing that can be compared.
        SnapshotError: a file cannot be read or trusted.
    """
    texts = [text_of(side.source) for side in (before, after)]
    if before.path.is_dir() != after.path.is_dir():
        folder, file = sorted((before.path, after.path), key=Path.is_dir, reverse=True)
        raise UsageError(f"{folder} is a folder and {file} is not", remedy="compare two files, or two folders")
    if before.path.is_dir():
        old, new = texts
        asked = {"before_text": old, "after_text": new}
        return diff_ranks(
            before.path, after.path, device=device, phase=phase, limits=limits, announce=announce, **asked
        )
    old_side, new_side = _loaded(before, after, texts, limits, announce)
    return diff(old_side, new_side, device=device, phase=phase)


def align_paths(
    before: Path,
    after: Path,
    *,
    device: int | None = None,
    limits: Limits | None = None,
    announce: Announce = lambda _stage, _done, _total: None,
) -> Aligned:
    """Return how ``after`` differs from ``before``, allocation by allocation; arguments as of :func:`diff_paths`.

    Raises:
        UsageError: one of them is a folder.
        InputError: they have no device in common, or are too different to be of the same program.
        SnapshotError: a file cannot be read or trusted.
    """
    for path in (before, after):
        if path.is_dir():
            raise UsageError(f"{path} is a folder", where="--align", remedy="align two files, one rank after the other")
    old, new = _loaded(Recorded(before), Recorded(after), [no_text, no_text], limits, announce)
    return align(old, new, device=device)


def _loaded(
    before: Recorded, after: Recorded, texts: Sequence[Text], limits: Limits | None, announce: Announce
) -> tuple[Named, Named]:
    sides = []
    for name, side, text in zip("AB", (before, after), texts, strict=True):
        announce(f"read {name}", 0, 0)
        sides.append(Named(str(side.path), load_snapshot(side.path, limits=limits), text))
    announce("compare", 0, 0)
    old, new = sides
    return old, new
