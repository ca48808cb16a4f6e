"""Two recordings of one program, allocation by allocation: what only one side has alive at the peak.

    python tests/conformance/alignment.py VIRTUAL.pickle CARD.pickle

Allocations are paired in their order by size and function, what is left by function alone. The moment of comparison is
B's peak and the same place in A's program. The rows sum exactly to the difference of requested bytes there.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import NamedTuple

import numpy as np

from oomscope.snapshot.accounting.lifetimes import BEFORE
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.read.load import load_snapshot
from oomscope.snapshot.sites import site_of
from oomscope.snapshot.trace import Action
from oomscope.units import format_size


class Row(NamedTuple):
    """Blocks that differ in the same way at the same line."""

    kind: str
    """``only_before``, ``only_after``, ``resized``, ``freed_earlier``, ``freed_later`` or ``older``."""
    site: str
    before_bytes: int
    after_bytes: int


@dataclass(frozen=True)
class Alignment:
    """What differs at B's peak."""

    before_bytes: int
    after_bytes: int
    rows: tuple[tuple[Row, int], ...]
    """With the number of blocks of each, those that weigh most first."""

    @property
    def delta_bytes(self) -> int:
        """What B has more alive than A."""
        return self.after_bytes - self.before_bytes


def align_events(before: Timeline, after: Timeline) -> Alignment:
    """Return how ``after`` differs from ``before`` at its peak."""
    pairs = dict(_paired(before, after))
    event = after.peak_event()
    old_event = max((old for old, new in pairs.items() if new <= event), default=-1)
    counts = Counter(_differences(before, old_event, after, event, pairs))
    rows = sorted(counts.items(), key=lambda each: -abs(each[1] * (each[0].after_bytes - each[0].before_bytes)))
    return Alignment(before.requested_bytes_at(old_event), after.requested_bytes_at(event), tuple(rows))


def _paired(before: Timeline, after: Timeline) -> Iterator[tuple[int, int]]:
    """Yield the alloc events of both sides that are one allocation."""
    (old, old_keys), (new, new_keys) = (_allocations(side) for side in (before, after))
    left = 0, 0
    for start, other, length in (*_common(old_keys, new_keys), (len(old), len(new), 0)):
        places = [[place for _, place in keys] for keys in (old_keys[left[0] : start], new_keys[left[1] : other])]
        for near, far, count in _common(*places):
            yield from zip(old[left[0] + near :][:count], new[left[1] + far :][:count], strict=True)
        yield from zip(old[start : start + length], new[other : other + length], strict=True)
        left = start + length, other + length


def _common(one: Sequence[Hashable], other: Sequence[Hashable]) -> list[tuple[int, int, int]]:
    return [
        (*block,) for block in SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks() if block.size
    ]


def _allocations(side: Timeline) -> tuple[list[int], list[tuple[int, str]]]:
    """Return the alloc events, each with its size and function, wherever the program lies."""
    trace = side.trace
    events = np.flatnonzero(trace.action == Action.ALLOC).tolist()
    sites = [site_of(stack) for stack in trace.stacks]
    names = [f"{'/'.join(site.file.split('/')[-2:])} {site.function}" if site else "" for site in sites]
    return events, [(int(trace.size[event]), names[trace.stack_id[event]]) for event in events]


def _differences(before: Timeline, old_event: int, after: Timeline, event: int, pairs: dict[int, int]) -> Iterator[Row]:
    """Yield a row for each block that differs among those alive at the moment of comparison."""
    old, new = _alive(before, old_event), _alive(after, event)
    for born, size in old.items():
        partner = pairs.get(born)
        if born == BEFORE:
            continue
        if partner is None or partner not in new:
            yield Row("only_before" if partner is None else "freed_earlier", _line(before, born), size, 0)
        elif new[partner] != size:
            yield Row("resized", _line(after, partner), size, new[partner])
    counterpart = {new_event: old_born for old_born, new_event in pairs.items()}
    for born, size in new.items():
        if born != BEFORE and counterpart.get(born) not in old:
            yield Row("freed_later" if born in counterpart else "only_after", _line(after, born), 0, size)
    if old.get(BEFORE, 0) != new.get(BEFORE, 0):
        yield Row("older", "", old.get(BEFORE, 0), new.get(BEFORE, 0))


def _alive(side: Timeline, event: int) -> dict[int, int]:
    """Return bytes by alloc event; of blocks from before the recording together."""
    table = side.lifetimes
    found: Counter[int] = Counter()
    for row in side.requested_at(event).tolist():
        found[int(table.born[row])] += int(table.size[row])
    return found


def _line(side: Timeline, event: int) -> str:
    return str(site_of(side.trace.stacks[side.trace.stack_id[event]]))


def main(before: str, after: str) -> None:
    """Print what differs between two snapshot files."""
    sides = []
    for path in (before, after):
        snapshot = load_snapshot(path)
        trace = max(snapshot.traces, key=len)
        sides.append(Timeline.of(trace, snapshot.segments))
    found = align_events(*sides)
    print(f"{format_size(found.before_bytes)} and {format_size(found.after_bytes)} at the same place")
    for row, count in found.rows[:40]:
        sizes = f"{format_size(row.before_bytes):>12} {format_size(row.after_bytes):>12}"
        print(f"{count:6,} {row.kind:13} {sizes} {row.site}")


if __name__ == "__main__":
    main(*sys.argv[1:])
