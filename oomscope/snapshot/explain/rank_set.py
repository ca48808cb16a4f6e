"""Snapshots of several ranks side by side: the worst one, how they differ, and who lags behind.

Ranks of one pipeline stage should need the same memory; a rank far from the middle, one that has seen fewer iterations
or whose last event is much older, is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, ClassVar, Final

from oomscope.document import Document, json_of
from oomscope.snapshot.explain.explanation import Explanation
from oomscope.snapshot.read.rank_files import LeftOut, Unread
from oomscope.units import Bytes

SCHEMA_VERSION: Final = 3
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
    peak: Bytes
    """The most requested and the most reserved bytes, perhaps at two moments."""
    overhead_at_peak_bytes: int
    """Reserved less requested bytes, at the peak of requested bytes."""
    idle_before_bytes: int = 0
    """Reserved before the recording and never used in it; where there is any, an earlier peak is not in the file."""
    end_requested_bytes: int
    iterations: int
    """Number of iterations whose end was recorded."""
    last_time_us: int | None
    categories: dict[str, int]
    """Requested bytes at the peak."""

    @property
    def badness(self) -> tuple[bool, int, int]:
        """Sort key of ranks, the worst first."""
        return self.failed_bytes is None, -(self.peak.reserved_bytes or 0), self.rank


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A rank that is not like the others, and in what."""

    rank: int
    text: str


@dataclass(frozen=True, kw_only=True)
class RankSet(Document):
    """The files of a folder; the first row is the worst rank."""

    not_written: ClassVar[tuple[str, ...]] = ("rows",)

    directory: str
    rows: tuple[RankRow, ...]
    stragglers: tuple[Straggler, ...]
    worst: Explanation
    unread: tuple[Unread, ...] = ()
    """Files that are left out, since they could not be read."""
    left_out: tuple[LeftOut, ...] = ()
    """Files of ranks that another file is shown for, and files of an unknown rank."""
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> dict[str, Any]:
        """Return the document that ``oomscope explain DIR --json`` prints."""
        return super().to_json() | {"ranks": json_of(self.rows)}


def stragglers_of(rows: Sequence[RankRow]) -> Iterator[Straggler]:
    """Yield each rank that differs from the middle one, once for each thing in which it does.

    Peaks are compared only where most ranks agree: the stages of a pipeline do not.
    """
    if len(rows) < 3:
        return
    ordered = sorted(rows, key=lambda row: row.rank)
    live = median(row.peak.requested_bytes for row in rows)
    apart = [row for row in ordered if abs(row.peak.requested_bytes - live) > APART * live]
    for row in apart if 2 * len(apart) < len(rows) else ():
        more = "more" if row.peak.requested_bytes > live else "less"
        share = abs(row.peak.requested_bytes - live) / live
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
