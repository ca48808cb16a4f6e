"""Snapshots of several ranks side by side: the worst one, how they differ, and who lags behind.

Ranks of one pipeline stage should need the same memory; a rank far from the middle, one that has seen fewer iterations
or whose last event is much older, is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from oomscope.errors import SnapshotError
from oomscope.snapshot.explaining.composition import composition_at
from oomscope.snapshot.explaining.doing import activity_of
from oomscope.snapshot.explaining.evidence import categorise
from oomscope.snapshot.explaining.explain import explain
from oomscope.snapshot.explaining.explanation import Explanation
from oomscope.snapshot.explaining.iterations import iterations_of
from oomscope.snapshot.judging.verdict import failure_of
from oomscope.snapshot.reading.limits import Limits
from oomscope.snapshot.reading.load import load_snapshot
from oomscope.snapshot.reading.rank_files import Unread, rank_numbers, snapshot_files
from oomscope.snapshot.timeline import Timeline
from oomscope.snapshot.trace import Snapshot, Trace

SCHEMA_VERSION: Final = 1
APART: Final = 0.05
"""Share by which a rank's peak must differ from the middle one's to be named."""
LATE_US: Final = 1_000_000
"""Microseconds by which a rank's last event must precede the middle one's to be named."""


@dataclass(frozen=True, kw_only=True)
class RankRow:
    """One device of one rank's file."""

    rank: int
    file: str
    device: int
    events: int
    failed_bytes: int | None
    """The last request that failed; None where none did."""
    live_bytes: int
    """Requested bytes at their peak."""
    reserved_bytes: int
    """Most that was reserved."""
    overhead_bytes: int
    """Reserved less live bytes, at the peak of live bytes."""
    end_live_bytes: int
    iterations: int
    """Of which the end is known."""
    last_time_us: int | None
    categories: dict[str, int]
    """Live requested bytes at the peak."""


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A rank that is not like the others, and in what."""

    rank: int
    text: str


@dataclass(frozen=True, kw_only=True)
class RankSet:
    """The files of a folder; the first row is the worst rank."""

    directory: str
    rows: tuple[RankRow, ...]
    stragglers: tuple[Straggler, ...]
    worst: Explanation
    unread: tuple[Unread, ...] = ()
    """Files that are left out, since they could not be read."""

    def to_json(self) -> dict[str, Any]:
        """Return the document that ``oomscope explain DIR --json`` prints."""
        return {
            "schema_version": SCHEMA_VERSION,
            "directory": self.directory,
            "ranks": [asdict(row) for row in self.rows],
            "stragglers": [asdict(row) for row in self.stragglers],
            "worst": self.worst.to_json(),
            "unread": [asdict(file) for file in self.unread],
        }


def explain_ranks(
    directory: Path,
    *,
    device: int | None = None,
    limit: int | None = None,
    non_torch: int = 0,
    torch_version: str | None = None,
    limits: Limits | None = None,
) -> RankSet:
    """Compare the snapshot files of a folder and explain the worst.

    The worst rank is one whose allocation failed, among these, or where none did, the one that reserved most.

    Args:
        directory: holds one file a rank.
        device: index of the one device to look at in each file; None: the one that holds most.
        limit: see :func:`~oomscope.snapshot.explaining.explain.explain`, as for the others.
        non_torch: bytes outside PyTorch.
        torch_version: whose rules count.
        limits: what reading a file may take.

    Raises:
        SnapshotError: there is no file, or none can be read.
    """
    files = snapshot_files(directory)
    numbers = rank_numbers([file.name for file in files])
    rows: list[RankRow] = []
    unread: list[Unread] = []
    refusals: list[SnapshotError] = []
    for file, number in zip(files, numbers, strict=True):
        try:
            rows += _rows(file, number, device, limits)
        except SnapshotError as error:
            unread.append(Unread.because(error, file))
            refusals.append(error)
    if len(refusals) == len(files):
        raise refusals[0]
    if not rows:
        raise SnapshotError("no file has anything on this device", where=str(directory), remedy="leave --device out")
    rows.sort(key=lambda row: (row.failed_bytes is None, -row.reserved_bytes, row.rank))
    worst = rows[0]
    explained = explain(
        load_snapshot(worst.file, limits=limits),
        file=worst.file,
        device=worst.device,
        limit=limit,
        non_torch=non_torch,
        torch_version=torch_version,
    )
    stragglers = tuple(stragglers_of(rows))
    return RankSet(
        directory=str(directory),
        rows=tuple(rows),
        stragglers=stragglers,
        worst=replace(explained, rank=worst.rank),
        unread=tuple(unread),
    )


def _rows(file: Path, number: int, device: int | None, limits: Limits | None) -> list[RankRow]:
    """Return the row of one file: of its device that holds most, where none is asked for."""
    snapshot = load_snapshot(file, limits=limits)
    told = snapshot.provenance.rank if snapshot.provenance else -1
    traces = [trace for trace in snapshot.traces if device is None or trace.device == device]
    rows = [_row(snapshot, trace, str(file), told if told >= 0 else number) for trace in traces]
    return [max(rows, key=lambda row: row.reserved_bytes)] if rows else []


def _row(snapshot: Snapshot, trace: Trace, file: str, rank: int) -> RankRow:
    timeline = Timeline.of(trace, snapshot.segments)
    event, failure = timeline.peak_event(), failure_of(trace)
    live = timeline.live_bytes_at(event)
    highest = timeline.reserved_peak()
    held = int(timeline.reserved[event]) if event >= 0 else highest.reserved_bytes
    found = composition_at(timeline, event, categorise(timeline, snapshot.annotations))
    last = int(trace.time_us.max(initial=-1))
    return RankRow(
        rank=rank,
        file=file,
        device=trace.device,
        events=len(trace),
        failed_bytes=failure.requested_bytes if failure else None,
        live_bytes=live,
        reserved_bytes=highest.reserved_bytes,
        overhead_bytes=held - live,
        end_live_bytes=timeline.end_live_bytes,
        iterations=len(iterations_of(timeline, activity_of(timeline, snapshot.annotations), snapshot.annotations)),
        last_time_us=last if last >= 0 else None,
        categories={row.category: row.bytes for row in found.categories},
    )


def stragglers_of(rows: Sequence[RankRow]) -> Iterator[Straggler]:
    """Yield each rank that differs from the middle one, once for each thing in which it does.

    Peaks are compared only where most ranks agree: the stages of a pipeline do not.
    """
    if len(rows) < 3:
        return
    ordered = sorted(rows, key=lambda row: row.rank)
    live = median(row.live_bytes for row in rows)
    apart = [row for row in ordered if abs(row.live_bytes - live) > APART * live]
    for row in apart if 2 * len(apart) < len(rows) else ():
        more = "more" if row.live_bytes > live else "less"
        share = abs(row.live_bytes - live) / live
        yield Straggler(rank=row.rank, text=f"needs {share:.0%} {more} at its peak than the middle rank")
    iterations = median(row.iterations for row in rows)
    for row in ordered:
        if row.iterations < iterations:
            yield Straggler(rank=row.rank, text=f"shows {row.iterations} iterations, the middle rank {iterations:g}")
    times = {row.rank: row.last_time_us for row in ordered if row.last_time_us is not None}
    for rank, last in times.items():
        late = median(times.values()) - last
        if late > LATE_US:
            yield Straggler(rank=rank, text=f"recorded its last event {late / 1e6:.1f} s before the middle rank")
