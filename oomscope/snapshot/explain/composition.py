"""What the requested bytes at one event are: by category with how sure it is, by line, by module, by size.

Every table sums exactly to the requested bytes; what cannot be told is a row of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from oomscope.snapshot.accounting.attribution import (
    SizeClass,
    by_module,
    by_site,
    by_size,
    site_without_stack,
    stacks_of,
)
from oomscope.snapshot.accounting.lifetimes import BEFORE, Indices, bytes_by
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.infer.categorise import Evidence
from oomscope.snapshot.infer.category_rules import Confidence
from oomscope.snapshot.sites import Site, SiteBytes, site_of
from oomscope.snapshot.trace import Category, Stack

Describe: TypeAlias = Callable[[int], tuple[Site, str]]
"""Returns the line and the category of a row of the lifetimes."""


class Describer:
    """Finds the allocating line and the category of a row of the lifetimes, whatever module ran it."""

    def __init__(self, timeline: Timeline, evidence: Evidence) -> None:
        self._timeline = timeline
        self._evidence = evidence
        older = np.flatnonzero(timeline.lifetimes.born == BEFORE)
        self._older = dict(zip(older.tolist(), stacks_of(timeline, older), strict=True))
        self._sites: dict[Stack, Site | None] = {}

    def __call__(self, row: int) -> tuple[Site, str]:
        """Return line and category of ``row``; for what backward allocates the forward's line, where it is known."""
        born = int(self._timeline.lifetimes.born[row])
        stack = self._older[row] if born == BEFORE else self._timeline.trace.attributed_stack(born)
        if stack not in self._sites:
            self._sites[stack] = site_of(stack)
        site = self._sites[stack] or site_without_stack(self._timeline, born)
        return site, Category(int(self._evidence.category[row])).label


CONSIDERABLE: Final = 0.1
"""Share of a sum that its least certain bytes must exceed to set the confidence of the sum."""


@dataclass(frozen=True, kw_only=True)
class CategoryBytes:
    """Requested bytes of one category."""

    category: str
    bytes: int
    count: int
    """Number of blocks."""
    confidence: str
    """Confidence: ``certain``, ``high``, ``medium`` or ``low``; ``none`` for the unknown. More than a tenth of the
    bytes have this confidence or a lower one."""
    rules: dict[str, int]
    """Bytes by the rule that gave the category, largest first."""


@dataclass(frozen=True, kw_only=True)
class ModuleBytes:
    """Requested bytes of one module, or of one source file where the recording knows no modules."""

    module: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Composition:
    """The requested bytes at one event; each table sums to ``bytes``."""

    event: int
    """The event; -1: before the first one, or there is none."""
    bytes: int
    categories: tuple[CategoryBytes, ...]
    sites: tuple[SiteBytes, ...]
    modules: tuple[ModuleBytes, ...]
    modules_are_files: bool
    sizes: tuple[SizeClass, ...]


def composition_at(timeline: Timeline, event: int, evidence: Evidence, *, held: bool = False) -> Composition:
    """Return what is requested right after ``event``, largest rows first.

    ``held`` leaves out what the program freed and a stream still uses.
    """
    rows = timeline.lifetimes.held_at(event) if held else timeline.requested_at(event)
    sites = by_site(timeline, event, categories=evidence.category, rows=rows)
    knows_modules = len(timeline.trace.modules) > 1
    modules = by_module(timeline, event, rows) if knows_modules else _by_file(sites)
    return Composition(
        event=event,
        bytes=int(timeline.lifetimes.size[rows].sum()),
        categories=_categories(rows, timeline.lifetimes.size[rows], evidence),
        sites=sites,
        modules=tuple(ModuleBytes(module=module or "unknown", bytes=size) for module, size in modules.items()),
        modules_are_files=not knows_modules,
        sizes=by_size(timeline, rows),
    )


def _categories(rows: Indices, size: Indices, evidence: Evidence) -> tuple[CategoryBytes, ...]:
    found = []
    for category in np.unique(evidence.category[rows]).tolist():
        own = evidence.category[rows] == category
        by_confidence = bytes_by(evidence.confidence[rows][own], size[own], len(Confidence))
        by_rule = bytes_by(evidence.rule[rows][own], size[own], len(evidence.rules))
        found.append(
            CategoryBytes(
                category=Category(category).label,
                bytes=int(size[own].sum()),
                count=int(own.sum()),
                confidence=_of_sum(by_confidence).label,
                rules={evidence.rules[rule]: int(by_rule[rule]) for rule in np.argsort(-by_rule) if by_rule[rule]},
            )
        )
    return tuple(sorted(found, key=lambda row: -row.bytes))


def _of_sum(by_confidence: Indices) -> Confidence:
    """Return the lowest confidence that, with all below it, covers a considerable share of the bytes."""
    up_to = np.cumsum(by_confidence)
    return Confidence(int((up_to > CONSIDERABLE * up_to[-1]).argmax()))


def _by_file(sites: Iterable[SiteBytes]) -> dict[str, int]:
    """Return bytes by source file, largest first; without one, by why there is none."""
    totals: Counter[str] = Counter()
    for row in sites:
        totals[row.site.file or row.site.function] += row.bytes
    return dict(totals.most_common())
