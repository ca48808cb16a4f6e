"""Lines whose blocks pile up: more of them are alive at the end of an iteration than at the end of the one before.

What an iteration makes anew and gives up, as gradients are, is alive at every end too, but always as young; a suspect
holds blocks of several iterations side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from oomscope.snapshot.infer.category_rules import Confidence
from oomscope.snapshot.infer.iterations import Iterations
from oomscope.snapshot.lifetimes import BEFORE
from oomscope.snapshot.replay.segment_map import stacks_of
from oomscope.snapshot.sites import Site, site_of
from oomscope.snapshot.timeline import Timeline
from oomscope.units import KiB

MIN_BYTES: Final = 64 * KiB
"""Bytes an iteration below which a line is no suspect."""


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A line whose requested bytes grow from iteration to iteration."""

    site: Site | None
    bytes: int
    """Alive at the end of the last iteration."""
    count: int
    iterations: int
    """Different iterations that these blocks are from."""
    bytes_per_iteration: int | None
    """What was left on average, from after the first iteration that left anything, which may leave more since it also
    creates what stays. None where the ends of iterations are a guess."""


def suspects_of(timeline: Timeline, iterations: Iterations) -> tuple[Suspect, ...]:
    """Return the suspects, largest first; it takes three iterations to see any."""
    ends = iterations.ends
    if len(ends) < 3:
        return ()
    table, trace = timeline.lifetimes, timeline.trace
    rows = table.held_at(int(ends[-1]))
    rows = rows[(table.born[rows] != BEFORE) & (table.born[rows] <= ends[-1])]
    stacks = stacks_of(timeline, rows)
    iteration = np.searchsorted(ends, table.born[rows])
    found: dict[Site | None, list[_Block]] = {}
    for row, number in zip(rows.tolist(), iteration.tolist(), strict=True):
        site = site_of(stacks[row], trace.modules[trace.module_id[table.born[row]]])
        found.setdefault(site, []).append(_Block(number, int(table.size[row])))
    are_sure = iterations.confidence > Confidence.LOW
    rates = {site: _bytes_per_iteration(blocks, before=len(ends) - 1) for site, blocks in found.items()}
    suspects = [
        _suspect(site, found[site], rate if are_sure else None) for site, rate in rates.items() if rate >= MIN_BYTES
    ]
    return tuple(sorted(suspects, key=lambda each: -each.bytes))


class _Block(NamedTuple):
    iteration: int
    size: int


def _bytes_per_iteration(blocks: Sequence[_Block], *, before: int) -> int:
    """Return what an iteration left on average, from after the first to the last that left any of ``blocks``.

    What is made from iteration ``before`` on is too young to count. 0 where no second iteration left any, or where none
    has for longer than ever before: that has come to its end.
    """
    left = [block for block in blocks if block.iteration < before]
    numbers = sorted({block.iteration for block in left})
    if len(numbers) < 2 or before - 1 - numbers[-1] >= int(np.diff(numbers).max()):
        return 0
    return sum(block.size for block in left if block.iteration > numbers[0]) // (numbers[-1] - numbers[0])


def _suspect(site: Site | None, blocks: Sequence[_Block], rate: int | None) -> Suspect:
    return Suspect(
        site=site,
        bytes=sum(block.size for block in blocks),
        count=len(blocks),
        iterations=len({block.iteration for block in blocks}),
        bytes_per_iteration=rate,
    )
