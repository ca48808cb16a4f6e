"""The lines of code whose live bytes differ between two probes: rows that sum to the difference, whatever it is.

Lines move when code above them is edited, so the lines of one function are paired in order before anything is
compared. Bytes that no line stands for (a request that failed, the demand of a run that was cut off) have rows of
their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from typing import Any

from oomscope.bisect.measured import live_bytes, recorded_live_bytes, recorded_peak, wanted_at_failure
from oomscope.probe.result import ProbeResult, Site, SiteBytes

FAILED_REQUEST = "the request that failed"
BEYOND_FAILURE = "the same run beyond the failure"


@dataclass(frozen=True, kw_only=True)
class SiteGrowth:
    """One line's live bytes at the peak, before and after."""

    site: Site | None
    """The line as it stands after the change (before it, where it is gone); None for what no line stands for."""
    category: str
    """Category of the blocks; for a row without a line, what the row is."""
    before_bytes: int
    after_bytes: int

    @property
    def delta_bytes(self) -> int:
        """Growth; negative where the line shrank."""
        return self.after_bytes - self.before_bytes

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {**asdict(self), "delta_bytes": self.delta_bytes}


def grown_sites(before: ProbeResult, after: ProbeResult) -> tuple[SiteGrowth, ...]:
    """Return the rows of growth from ``before`` to ``after``, largest change first.

    They sum to the difference of :func:`~oomscope.bisect.measured.live_bytes`.
    """
    peaks = [recorded_peak(result) for result in (before, after)]
    sites = grew(*(peak.sites if peak else () for peak in peaks))
    extras = (*_unrecorded(before, is_after=False), *_unrecorded(after, is_after=True))
    return _largest_first((*sites, *_merged(extras)))


def grew(before: Sequence[SiteBytes], after: Sequence[SiteBytes]) -> tuple[SiteGrowth, ...]:
    """Return the sites that differ, largest change first; sums to the bytes of ``after`` minus those of ``before``.

    Sites are the same when file, function, module and category are, and they come in the same order within the
    function; where it holds more lines than before, equal byte counts are paired first. Where one side alone does not
    know the modules of a function, the bytes of its lines are compared over all modules.
    """
    groups: dict[tuple[str, str, str], tuple[list[SiteBytes], list[SiteBytes]]] = defaultdict(lambda: ([], []))
    for side, rows in enumerate((before, after)):
        for row in rows:
            groups[row.site.file, row.site.function, row.category][side].append(row)
    pairs = [pair for old, new in groups.values() for pair in _paired_by_module(old, new)]
    grown = [_row(old, new) for old, new in pairs]
    return _largest_first(row for row in grown if row.delta_bytes)


Pair = tuple[SiteBytes | None, SiteBytes | None]


def _paired_by_module(old: list[SiteBytes], new: list[SiteBytes]) -> Iterator[Pair]:
    """Pair the lines of one function module by module."""
    modules = [{row.site.module for row in rows} for rows in (old, new)]
    if old and new and ("" in modules[0]) != ("" in modules[1]):
        yield from _paired(_over_modules(old), _over_modules(new))
        return
    for module in sorted(modules[0] | modules[1]):
        yield from _paired(*([row for row in rows if row.site.module == module] for rows in (old, new)))


def _over_modules(rows: list[SiteBytes]) -> list[SiteBytes]:
    """Add up the rows of each line, whatever module they are in; that is named where it is the only one."""
    lines: dict[int, list[SiteBytes]] = defaultdict(list)
    for row in rows:
        lines[row.site.line].append(row)
    return [
        replace(
            parts[0],
            site=replace(parts[0].site, module=parts[0].site.module if len(parts) == 1 else ""),
            bytes=sum(part.bytes for part in parts),
            count=sum(part.count for part in parts),
        )
        for parts in lines.values()
    ]


def _paired(old: list[SiteBytes], new: list[SiteBytes]) -> list[Pair]:
    """Pair the lines of one function in order; where their numbers differ, those with equal bytes come out first."""
    old, new = sorted(old, key=_line), sorted(new, key=_line)
    if len(old) != len(new):
        unchanged = _common(old, new)
        for before, after in unchanged:
            old.remove(before)
            new.remove(after)
    return list(zip_longest(old, new))


def _common(old: list[SiteBytes], new: list[SiteBytes]) -> list[tuple[SiteBytes, SiteBytes]]:
    left = list(new)
    pairs = []
    for before in old:
        match = next((after for after in left if after.bytes == before.bytes), None)
        if match is not None:
            left.remove(match)
            pairs.append((before, match))
    return pairs


def _row(old: SiteBytes | None, new: SiteBytes | None) -> SiteGrowth:
    shown = new or old
    return SiteGrowth(
        site=shown.site if shown else None,
        category=shown.category if shown else "",
        before_bytes=old.bytes if old else 0,
        after_bytes=new.bytes if new else 0,
    )


def _unrecorded(result: ProbeResult, *, is_after: bool) -> list[SiteGrowth]:
    """Return rows for live bytes that the run wanted beyond those of its recorded peak."""
    recorded = recorded_live_bytes(result)
    request = max(0, wanted_at_failure(result) - recorded)
    rest = live_bytes(result) - recorded - request
    site = result.oom.site if result.oom else None
    rows = ((site, FAILED_REQUEST, request), (None, BEYOND_FAILURE, rest))
    return [
        SiteGrowth(site=place, category=what, before_bytes=0 if is_after else size, after_bytes=size if is_after else 0)
        for place, what, size in rows
        if size
    ]


def _merged(rows: Iterable[SiteGrowth]) -> list[SiteGrowth]:
    """Add up rows of one place and kind, and drop those that did not change."""
    sums: dict[tuple[Site | None, str], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for row in rows:
        before, after = sums[row.site, row.category]
        sums[row.site, row.category] = (before + row.before_bytes, after + row.after_bytes)
    merged = [
        SiteGrowth(site=site, category=category, before_bytes=before, after_bytes=after)
        for (site, category), (before, after) in sums.items()
    ]
    return [row for row in merged if row.delta_bytes]


def _largest_first(rows: Iterable[SiteGrowth]) -> tuple[SiteGrowth, ...]:
    return tuple(sorted(rows, key=lambda row: (-abs(row.delta_bytes), str(row.site), row.category)))


def _line(row: SiteBytes) -> int:
    return row.site.line
