"""Lines whose blocks pile up: one more of them is alive at the end of each iteration.

What an iteration makes anew and gives up, as gradients are, is alive at every end too, but always as young; a suspect
holds blocks of several iterations side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from oomscope.snapshot.inferring.category_rules import Confidence
from oomscope.snapshot.inferring.iterations import Iterations
from oomscope.snapshot.lifetimes import BEFORE
from oomscope.snapshot.replaying.segment_map import stacks_of
from oomscope.snapshot.sites import Site, site_of
from oomscope.snapshot.timeline import Timeline
from oomscope.units import KiB

MIN_BYTES: Final = 64 * KiB
"""Bytes an iteration below which a line is no suspect."""


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A line whose live bytes grow from iteration to iteration."""

    site: Site | None
    bytes: int
    """Of its blocks that outlived at least one whole iteration after their own."""
    count: int
    iterations: int
    """Different iterations that these blocks are from."""
    bytes_per_iteration: int | None
    """What the last of these left; the first one may leave more, since it also creates what stays. None where the ends
    of iterations are a guess."""


def suspects_of(timeline: Timeline, iterations: Iterations) -> tuple[Suspect, ...]:
    """Return the suspects, largest first; it takes three iterations to see any."""
    ends = iterations.ends
    if len(ends) < 3:
        return ()
    table, trace = timeline.lifetimes, timeline.trace
    rows = table.live_at(int(ends[-1]))
    rows = rows[(table.born[rows] != BEFORE) & (table.born[rows] <= ends[-2])]
    stacks = stacks_of(timeline, rows)
    iteration = np.searchsorted(ends, table.born[rows])
    found: dict[Site | None, list[tuple[int, int]]] = {}
    for row, number in zip(rows.tolist(), iteration.tolist(), strict=True):
        site = site_of(stacks[row], trace.modules[trace.module_id[table.born[row]]])
        found.setdefault(site, []).append((number, int(table.size[row])))
    are_sure = iterations.confidence > Confidence.LOW
    suspects = [_suspect(site, blocks, are_sure) for site, blocks in found.items() if _last_left(blocks) >= MIN_BYTES]
    grown = [each for each in suspects if each.iterations > 1]
    return tuple(sorted(grown, key=lambda each: -each.bytes))


def _last_left(blocks: list[tuple[int, int]]) -> int:
    """Return the bytes of the blocks, each an iteration and a size, that are of the last iteration among them."""
    last = max(number for number, _ in blocks)
    return sum(size for number, size in blocks if number == last)


def _suspect(site: Site | None, blocks: list[tuple[int, int]], are_sure: bool) -> Suspect:
    return Suspect(
        site=site,
        bytes=sum(size for _, size in blocks),
        count=len(blocks),
        iterations=len({number for number, _ in blocks}),
        bytes_per_iteration=_last_left(blocks) if are_sure else None,
    )
