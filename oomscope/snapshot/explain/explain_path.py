"""Explain what a path names: a snapshot file, or a folder with one file a rank.

Of a folder one file of each rank is taken; all ranks are put side by side, and the worst is explained in full. Each
file is read once at most; the worst one so far stays in memory beside the one that is read.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from oomscope.errors import SnapshotError
from oomscope.snapshot.accounting.idle_before import idle_before
from oomscope.snapshot.explain.analysis import Analysis, analyse
from oomscope.snapshot.explain.composition import composition_at
from oomscope.snapshot.explain.explain import explanation_of
from oomscope.snapshot.explain.explanation import Explanation
from oomscope.snapshot.explain.rank_set import RankRow, RankSet, Straggler, stragglers_of
from oomscope.snapshot.judge.verdict import ending_failure
from oomscope.snapshot.read.limits import Limits
from oomscope.snapshot.read.load import load_snapshot
from oomscope.snapshot.read.rank_files import Announce, LeftOut, Unread, rank_files
from oomscope.units import Bytes


class Explained(NamedTuple):
    """What was found, and the analyses behind it."""

    found: Explanation | RankSet
    analyses: tuple[Analysis, ...]
    """Analyses of the devices of the explanation, or of the worst rank's."""


def explain_path(
    path: Path,
    *,
    device: int | None = None,
    limit: int | None = None,
    non_torch: int = 0,
    torch_version: str | None = None,
    limits: Limits | None = None,
    announce: Announce = lambda _stage, _done, _total: None,
) -> Explained:
    """Return the explanation of a file, or of the files of a folder.

    Args are those of :func:`~oomscope.snapshot.explain.analysis.analyse`, and ``limits`` what reading a file may take.
    In a folder ``device`` None means the device of each file that holds most.

    Raises:
        SnapshotError: a file cannot be read or trusted; of a folder, none can, or none has the device.
        UsageError: the file knows no such device.
        AllocatorConfError: the recorded allocator settings have no rules here.
    """
    asked: dict[str, Any] = {"device": device, "limit": limit, "non_torch": non_torch, "torch_version": torch_version}
    if path.is_dir():
        return _explain_ranks(path, asked, limits, announce)
    announce("read", 0, 0)
    snapshot = load_snapshot(path, limits=limits)
    announce(f"analyse {sum(map(len, snapshot.traces)):,} events", 0, 0)
    analyses = analyse(snapshot, file=str(path), **asked)
    return Explained(explanation_of(snapshot, analyses, file=str(path)), analyses)


def _explain_ranks(folder: Path, asked: dict[str, Any], limits: Limits | None, announce: Announce) -> Explained:
    """Compare the files of a folder; the worst rank is one whose allocation failed, else the one that reserved most."""
    files = rank_files(folder)
    rows: list[RankRow] = []
    stragglers: list[Straggler] = []
    refusals: list[SnapshotError] = []
    unread: list[Unread] = []
    left_out: list[LeftOut] = []
    ranks: dict[str, int] = {}  # files by stem
    worst: Analysis | None = None
    for done, named in enumerate(files):
        announce("file", done, len(files))
        file = named.path
        if named.stem in ranks:
            left_out.append(LeftOut(file=str(file), rank=ranks[named.stem]))
            continue
        try:
            snapshot = load_snapshot(file, limits=limits)
        except SnapshotError as error:
            refusals.append(error)
            unread.append(Unread(file=str(file), reason=error.message))
            continue
        recorded = snapshot.provenance.rank if snapshot.provenance else -1
        rank = recorded if recorded >= 0 else named.rank
        if rank is None or rank in ranks.values():
            left_out.append(LeftOut(file=str(file), rank=rank))
            continue
        ranks[named.stem] = rank
        wanted = asked["device"]
        if not any(wanted in (None, trace.device) for trace in snapshot.traces):
            where = "any device" if wanted is None else f"device {wanted}"
            stragglers.append(Straggler(rank=rank, text=f"has nothing on {where}"))
            continue
        analyses = analyse(snapshot, file=str(file), **asked)
        fullest = max(analyses, key=lambda each: each.bare.reserved_peak().reserved_bytes)
        row = _row(fullest, str(file), rank)
        if not rows or row.badness < min(each.badness for each in rows):
            worst = fullest
        rows.append(row)
    announce("analyse the worst rank", 0, 0)
    if worst is None:
        if left_out and not ranks:
            raise SnapshotError(
                "neither file names nor recordings give the ranks",
                where=str(folder),
                remedy="explain one file, or name them by rank, such as snap-0.pickle",
            )
        if refusals and not stragglers:
            raise _none_can_be_read(refusals, unread)
        raise SnapshotError("no file has anything on this device", where=str(folder), remedy="leave --device out")
    rows.sort(key=lambda row: row.badness)
    found = RankSet(
        directory=str(folder),
        rows=tuple(rows),
        stragglers=(*stragglers_of(rows), *sorted(stragglers, key=lambda each: each.rank)),
        worst=replace(explanation_of(worst.snapshot, (worst,), file=rows[0].file), rank=rows[0].rank),
        unread=tuple(unread),
        left_out=tuple(sorted(left_out, key=lambda each: each.file)),
    )
    return Explained(found, (worst,))


def _none_can_be_read(refusals: list[SnapshotError], unread: list[Unread]) -> SnapshotError:
    """Return the error of the first file, which names the others."""
    first = refusals[0]
    if len(unread) == 1:
        return first
    named = ", ".join(f"{Path(each.file).name} ({each.reason})" for each in unread[1:])
    return SnapshotError(f"{first.message}; nor can {named}", where=first.where, remedy=first.remedy)


def _row(analysis: Analysis, file: str, rank: int) -> RankRow:
    timeline, trace = analysis.bare, analysis.recorded
    event, failure = timeline.peak_event(), ending_failure(trace)
    requested = timeline.requested_bytes_at(event)
    last = int(trace.time_us.max(initial=-1))
    return RankRow(
        rank=rank,
        file=file,
        device=trace.device,
        events=len(trace),
        failed_bytes=failure.requested_bytes if failure else None,
        peak=Bytes(requested_bytes=requested, reserved_bytes=timeline.reserved_peak().reserved_bytes),
        overhead_at_peak_bytes=timeline.reserved_bytes_at(event) - requested,
        idle_before_bytes=idle_before(timeline),
        end_requested_bytes=timeline.end_requested_bytes,
        iterations=len(analysis.iterations),
        last_time_us=last if last >= 0 else None,
        categories={row.category: row.bytes for row in composition_at(timeline, event, analysis.evidence).categories},
    )
