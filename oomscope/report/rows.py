"""The rows that reports show: many measurements of one thing become one row, and what is left out stays in the sum."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from oomscope.probe.result import PhaseBytes, Site, SiteBytes

SHOWN = 8


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
        """The module, or how many."""
        return self.modules[0] if len(self.modules) == 1 else f"{len(self.modules)} modules" if self.modules else ""


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
