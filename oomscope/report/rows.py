"""The rows that reports show: many measurements of one thing become one row, and what is left out stays in the sum."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from oomscope.bisect.results.result import BisectResult, StepRow
from oomscope.bisect.search.line import Answer
from oomscope.bisect.search.measured import Bytes
from oomscope.probe.result import PhaseBytes, Site, SiteBytes
from oomscope.report.sentences import count
from oomscope.units import MiB, format_size

SHOWN = 8
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
"""A component of a module path that numbers a layer."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """Requested bytes of one line of code, over all modules that ran it; ``site`` None sums further lines."""

    site: Site | None
    bytes: int
    count: int
    category: str
    modules: tuple[str, ...]
    lines: int = 1

    @property
    def module(self) -> str:
        """The module; ``h.*`` for the same module of several layers, else how many modules."""
        merged = {_NUMBER.sub("*", module) for module in self.modules}
        if len(self.modules) == 1:
            return self.modules[0]
        return merged.pop() if len(merged) == 1 and merged != {"*"} else f"{len(merged)} modules" if merged else ""


def lines(sites: Iterable[SiteBytes], shown: int = SHOWN) -> list[Line]:
    """Return ``sites`` by line of code and category, largest first; those beyond ``shown`` as one last row."""
    groups: dict[tuple[str, int, str, str], list[SiteBytes]] = {}
    for row in sites:
        groups.setdefault((row.site.file, row.site.line, row.site.function, row.category), []).append(row)
    ordered = sorted((_line(group) for group in groups.values()), key=lambda line: -line.bytes)
    rest = ordered[shown:]
    if len(rest) < 2:
        return ordered
    total = Line(
        site=None,
        bytes=sum(line.bytes for line in rest),
        count=sum(line.count for line in rest),
        category="",
        modules=(),
        lines=len(rest),
    )
    return [*ordered[:shown], total]


def _line(group: list[SiteBytes]) -> Line:
    modules = tuple(dict.fromkeys(row.site.module for row in group if row.site.module))
    return Line(
        site=group[0].site,
        bytes=sum(row.bytes for row in group),
        count=sum(row.count for row in group),
        category=group[0].category,
        modules=modules,
    )


def highest_phases(phases: Iterable[PhaseBytes]) -> list[PhaseBytes]:
    """Return of each phase the iteration in which it needed most requested bytes, in the order in which phases came.

    Reserved bytes are the most of any iteration, which may be another: the cache grows while requested bytes repeat.
    """
    highest: dict[str, PhaseBytes] = {}
    for row in phases:
        known = highest.setdefault(row.phase, row)
        reserved = max(known.reserved_bytes, row.reserved_bytes)
        live = row if row.requested_bytes > known.requested_bytes else known
        highest[row.phase] = replace(live, reserved_bytes=reserved)
    return list(highest.values())


FEWEST = 2
"""Small rows from which on they are one."""
SMALL = MiB
"""Steps that change less are small, where another one changes a hundred times as much."""


def folded(steps: Sequence[StepRow], culprit: str | None = None) -> tuple[StepRow, ...]:
    """Return the steps that matter, in their order, and a last row that sums all others.

    Args:
        steps: rows from good to bad.
        culprit: hash of a commit whose row stays, whatever it changed.
    """
    least = min(SMALL, max(map(_size, steps), default=0) // 100)
    small = [step for step in steps if _size(step) <= least and (culprit is None or step.commit != culprit)]
    if len(small) < FEWEST:
        return tuple(steps)
    rows = f"{count(len(small), 'further row')}, over {count(sum(step.commits for step in small), 'commit')}"
    what = f"at most {format_size(least)} each" if any(map(_size, small)) else "no change"
    total = sum((step.delta for step in small), start=Bytes(reserved_bytes=small[0].delta.reserved_bytes and 0))
    return (
        *(step for step in steps if step not in small),
        StepRow(commit=None, label=f"{what}: {rows}", delta=total),
    )


def _size(step: StepRow) -> int:
    return max(abs(step.delta.requested_bytes), abs(step.delta.reserved_bytes or 0))


class StepSet(NamedTuple):
    """A step over several commits that splitting has left."""

    step: StepRow
    reason: str
    """Why it was not split further."""


def step_sets(result: BisectResult) -> Iterator[StepSet]:
    """Yield the steps that no probe could split; none where steps were not searched for.

    What the deadline left unsplit is none of them.
    """
    if result.waterfall is None:
        return
    answered = {probe.commit for probe in result.probes if probe.answer is not Answer.UNTESTABLE}
    untestable = {probe.commit for probe in result.untestable} - answered
    for step in result.steps:
        if step.commit is None or step.commits == 1:
            continue
        inside = _between(result, step)
        silent = len(inside & untestable)
        if silent == step.commits - 1:
            what = "the commit" if silent == 1 else f"none of the {silent} commits"
            yield StepSet(step, f"{what} between {'cannot' if silent == 1 else 'can'} be tested")
        elif result.waterfall.is_complete:
            broken = f"; {count(silent, 'commit')} between cannot be tested" if silent else ""
            yield StepSet(step, f"no commit between stands clear of the spread of a probe{broken}")


def _between(result: BisectResult, step: StepRow) -> set[str]:
    """Return the names of the commits after the one before ``step`` and before the one that closes it."""
    for line in result.lines:
        if step.since in line.position and step.commit in line.position:
            places = line.places[line.position[step.since] + 1 : line.position[step.commit]]
            return {place.commit for place in places}
    return set()
