"""Explain what a path names: a snapshot file, or a folder with one file a rank. It is read and analysed once.

Explain a folder of snapshots, one file a rank: all side by side, and the worst in full. Each file is read once. The
worst one so far stays in memory beside the one that is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from oomscope.errors import SnapshotError
from oomscope.snapshot.explain.analysis import Analysis, analyse
from oomscope.snapshot.explain.composition import composition_at
from oomscope.snapshot.explain.explain import explanation_of
from oomscope.snapshot.explain.explanation import Explanation
from oomscope.snapshot.explain.rank_set import RankRow, RankSet, Straggler, stragglers_of
from oomscope.snapshot.judge.verdict import ending_failure
from oomscope.snapshot.read.limits import Limits
from oomscope.snapshot.read.load import load_snapshot
from oomscope.snapshot.read.rank_files import Unread, rank_numbers, ranks_of, snapshot_files, told_rank
from oomscope.snapshot.trace import Snapshot


class AnalysedRanks(NamedTuple):
    """What was found, and the analysis of the worst rank, of which pictures are made."""

    found: RankSet
    worst: Analysis


class _Card(NamedTuple):
    """What is asked of each file, as in :func:`~oomscope.snapshot.explain.analysis.analyse`."""

    device: int | None
    limit: int | None
    non_torch: int
    torch_version: str | None


def analyse_ranks(
    directory: Path,
    *,
    device: int | None = None,
    limit: int | None = None,
    non_torch: int = 0,
    torch_version: str | None = None,
    limits: Limits | None = None,
    announce: Callable[[str, int, int], None] = lambda _stage, _done, _total: None,
) -> AnalysedRanks:
    """Compare the snapshot files of a folder and explain the worst.

    The worst rank is one whose allocation failed, among these, or where none did, the one that reserved most.

    Args:
        directory: holds one file a rank; :func:`~oomscope.snapshot.read.rank_files.ranks_of` tells which is which.
        device: index of the one device to look at in each file; None: the one that holds most.
        limit: see :func:`~oomscope.snapshot.explain.analysis.analyse`, as for the others.
        non_torch: bytes outside PyTorch.
        torch_version: whose rules count.
        limits: what reading a file may take.
        announce: is told what is done, and of how many files how many are.

    Raises:
        SnapshotError: there is no file, or none can be read.
        AllocatorConfError: the settings that the worst rank recorded have no rules here.
    """
    files = snapshot_files(directory)
    folder = _Folder(files, _Card(device, limit, non_torch, torch_version), limits)
    numbers = rank_numbers([file.name for file in files])
    for done, (file, number) in enumerate(zip(files, numbers, strict=True)):
        announce("file", done, len(files))
        folder.read(file, number)
    announce("analyse the worst rank", 0, 0)
    if len(folder.refusals) == len(files):
        raise _none_can_be_read(folder.refusals)
    if folder.worst is None:
        raise SnapshotError("no file has anything on this device", where=str(directory), remedy="leave --device out")
    (ranks,) = ranks_of(folder.told)
    rows = [replace(folder.rows[file], rank=ranks[file]) for file in sorted(folder.rows, key=folder.badness)]
    worst = explanation_of(folder.worst.snapshot, (folder.worst,), file=rows[0].file)
    found = RankSet(
        directory=str(directory),
        rows=tuple(rows),
        stragglers=(*stragglers_of(rows), *_without_device(folder, ranks, device)),
        worst=replace(worst, rank=rows[0].rank),
        unread=tuple(Unread.because(error, file) for file, error in folder.refusals.items()),
    )
    return AnalysedRanks(found, folder.worst)


def _none_can_be_read(refusals: Mapping[Path, SnapshotError]) -> SnapshotError:
    """Return the error of the first file, which names the others."""
    first, *others = refusals.items()
    if not others:
        return first[1]
    named = ", ".join(f"{file.name} ({error.message})" for file, error in others)
    return SnapshotError(f"{first[1].message}; nor can {named}", where=first[1].where, remedy=first[1].remedy)


def _without_device(folder: _Folder, ranks: Mapping[Path, int], device: int | None) -> Iterator[Straggler]:
    """Yield the ranks whose file could be read and has nothing on the device that is asked for."""
    for file in folder.told:
        if file not in folder.rows and file not in folder.refusals:
            where = "any device" if device is None else f"device {device}"
            yield Straggler(rank=ranks[file], text=f"has nothing on {where}")


class _Folder:
    """What is known of a folder while its files are read one after another."""

    def __init__(self, files: Sequence[Path], card: _Card, limits: Limits | None) -> None:
        self._card = card
        self._limits = limits
        self.told = dict.fromkeys(files, -1)
        """The rank that each recording says it is of; -1 where it says none."""
        self.rows: dict[Path, RankRow] = {}
        """By the rank that the file tells by itself; which one counts is known when all have been read."""
        self.refusals: dict[Path, SnapshotError] = {}
        self.worst: Analysis | None = None

    def read(self, file: Path, number: int) -> None:
        """Read one more file, whose name stands for rank ``number``."""
        try:
            snapshot = load_snapshot(file, limits=self._limits)
        except SnapshotError as error:
            self.refusals[file] = error
            return
        self.told[file] = told_rank(snapshot)
        analysis = _fullest(snapshot, str(file), self._card)
        if analysis is not None:
            self.rows[file] = _row(analysis, str(file), number if self.told[file] < 0 else self.told[file])
            if min(self.rows, key=self.badness) == file:
                self.worst = analysis

    def badness(self, file: Path) -> tuple[bool, int, int]:
        """Return by what files are ordered, the worst first."""
        row = self.rows[file]
        return row.failed_bytes is None, -row.reserved_bytes, row.rank


def _fullest(snapshot: Snapshot, file: str, card: _Card) -> Analysis | None:
    """Return the device that is asked for, else the one that holds most; None where the file has nothing on it."""
    if not any(card.device in (None, trace.device) for trace in snapshot.traces):
        return None
    analyses = analyse(snapshot, file=file, **card._asdict())
    return max(analyses, key=lambda each: each.bare.reserved_peak().reserved_bytes)


def _row(analysis: Analysis, file: str, rank: int) -> RankRow:
    timeline, trace = analysis.bare, analysis.recorded
    event, failure = timeline.peak_event(), ending_failure(trace)
    live = timeline.requested_bytes_at(event)
    highest = timeline.reserved_peak()
    last = int(trace.time_us.max(initial=-1))
    found = composition_at(timeline, event, analysis.evidence)
    return RankRow(
        rank=rank,
        file=file,
        device=trace.device,
        events=len(trace),
        failed_bytes=failure.requested_bytes if failure else None,
        requested_bytes=live,
        reserved_bytes=highest.reserved_bytes,
        overhead_bytes=timeline.reserved_bytes_at(event) - live,
        end_requested_bytes=timeline.end_requested_bytes,
        iterations=len(analysis.iterations),
        last_time_us=last if last >= 0 else None,
        categories={row.category: row.bytes for row in found.categories},
    )


class Explained(NamedTuple):
    """What was found, and the analyses behind it."""

    found: Explanation | RankSet
    analyses: tuple[Analysis, ...]
    """Of the devices of the explanation, or of the worst rank's."""


def explain_path(
    path: Path,
    *,
    device: int | None = None,
    limit: int | None = None,
    non_torch: int = 0,
    torch_version: str | None = None,
    limits: Limits | None = None,
    announce: Callable[[str, int, int], None] = lambda _stage, _done, _total: None,
) -> Explained:
    """Return what a file tells, or what the files of a folder do.

    Args are those of :func:`~oomscope.snapshot.explain.analysis.analyse`, ``limits`` what reading may take, and
    ``announce`` is told what begins, with how many of how many are done where that is counted.

    Raises:
        SnapshotError: a file cannot be read or trusted; of a folder, none can.
        UsageError: the file knows no such device.
        AllocatorConfError: the recorded allocator settings have no rules here.
    """
    asked: dict[str, Any] = {"device": device, "limit": limit, "non_torch": non_torch, "torch_version": torch_version}
    if path.is_dir():
        ranks = analyse_ranks(path, limits=limits, announce=announce, **asked)
        return Explained(ranks.found, (ranks.worst,))
    announce("read", 0, 0)
    snapshot = load_snapshot(path, limits=limits)
    announce(f"analyse {sum(map(len, snapshot.traces)):,} events", 0, 0)
    analyses = analyse(snapshot, file=str(path), **asked)
    return Explained(explanation_of(snapshot, analyses, file=str(path)), analyses)
