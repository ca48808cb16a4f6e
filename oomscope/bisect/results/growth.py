"""The lines of code whose requested bytes differ between two probes: rows that sum to the difference, whatever it is.

Lines move when code above them is edited, so they are matched as in the comparison of two snapshots
(:mod:`oomscope.snapshot.compare.changes`), by the text of both sides where that is at hand. Bytes that no line stands
for (a request that failed, the demand of a run that was cut off) have rows of their own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from oomscope.bisect.vcs.source_text import NO_SOURCES, Sources
from oomscope.document import Document
from oomscope.probe.demand import recorded_peak, recorded_requested_bytes, requested_bytes, wanted_at_failure
from oomscope.probe.result import ProbeResult, Site, SiteBytes
from oomscope.snapshot.compare.changes import line_changes

FAILED_REQUEST = "the request that failed"
BEYOND_FAILURE = "the same run beyond the failure"


@dataclass(frozen=True, kw_only=True)
class SiteGrowth(Document):
    """One line's requested bytes at the peak, before and after."""

    also_written: ClassVar[tuple[str, ...]] = ("delta_bytes",)

    site: Site | None
    """The line as it stands after the change (before it, where it is gone); None for what no line stands for."""
    category: str
    """Category of the blocks; in a row without a line, a name for the row."""
    before_bytes: int
    after_bytes: int

    @property
    def delta_bytes(self) -> int:
        """Growth; negative where the line shrank."""
        return self.after_bytes - self.before_bytes


def grown_sites(
    before: ProbeResult, after: ProbeResult, sources: Sources = NO_SOURCES, *, by_module: bool = True
) -> tuple[SiteGrowth, ...]:
    """Return the rows of growth from ``before`` to ``after``, largest change first.

    They sum to the difference of :func:`~oomscope.probe.demand.requested_bytes`. Without ``by_module`` a line is one
    row for each category, in whichever modules it runs.
    """
    peaks = [recorded_peak(result) for result in (before, after)]
    old, new = (peak.sites if peak else () for peak in peaks)
    rows = [*grew(old, new, sources, by_module=by_module), *_unrecorded(before, after)]
    return tuple(sorted(rows, key=lambda row: (-abs(row.delta_bytes), str(row.site), row.category)))


def dominant_growth(before: ProbeResult, after: ProbeResult, sources: Sources = NO_SOURCES) -> SiteGrowth | None:
    """Return the row that changed most in the direction in which all requested bytes changed; None where they did not.

    What went from one line to others of its category (a call into a function, say) did not change the sum: a row counts
    for no more than its category changed by. Of rows that count for the same, that which is nearest to it is returned,
    without what it has beyond that and beyond the whole change.
    """
    change = requested_bytes(after) - requested_bytes(before)
    if change == 0:
        return None
    rows = grown_sites(before, after, sources, by_module=False)
    by_category: Counter[str] = Counter()
    for row in rows:
        by_category[row.category] += row.delta_bytes
    sign = 1 if change > 0 else -1
    same_way = [row for row in rows if row.delta_bytes * sign > 0]

    def explained(row: SiteGrowth) -> int:
        return max(0, min(abs(row.delta_bytes), by_category[row.category] * sign))

    if not same_way:
        return None
    row = min(same_way, key=lambda row: (-explained(row), abs(row.delta_bytes)))
    moved = abs(row.delta_bytes) - min(explained(row), abs(change))
    if change > 0:
        return replace(row, after_bytes=row.after_bytes - moved)
    return replace(row, before_bytes=row.before_bytes - moved)


def grew(
    before: Sequence[SiteBytes],
    after: Sequence[SiteBytes],
    sources: Sources = NO_SOURCES,
    *,
    by_module: bool = True,
) -> tuple[SiteGrowth, ...]:
    """Return the lines that differ, largest change first; sums to the bytes of ``after`` minus those of ``before``.

    A line that moved is one row; so is one whose modules one side alone does not know.
    """
    rows = line_changes(
        before,
        after,
        sources.before.lines,
        sources.after.lines,
        unchanged=sources.are_one,
        by_module=by_module,
    )
    return tuple(
        SiteGrowth(site=row.site, category=row.category, before_bytes=row.before_bytes, after_bytes=row.after_bytes)
        for row in rows
        if row.delta_bytes
    )


def _unrecorded(before: ProbeResult, after: ProbeResult) -> list[SiteGrowth]:
    """Return rows for requested bytes that the runs wanted beyond those of their recorded peaks."""
    sums: defaultdict[tuple[Site | None, str], list[int]] = defaultdict(lambda: [0, 0])
    for side, result in enumerate((before, after)):
        recorded = recorded_requested_bytes(result)
        request = max(0, wanted_at_failure(result) - recorded)
        sums[result.oom.site if result.oom else None, FAILED_REQUEST][side] += request
        sums[None, BEYOND_FAILURE][side] += requested_bytes(result) - recorded - request
    return [
        SiteGrowth(site=site, category=category, before_bytes=low, after_bytes=high)
        for (site, category), (low, high) in sums.items()
        if low != high
    ]
