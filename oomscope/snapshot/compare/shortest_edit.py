"""The longest common subsequence of two long rows of numbers that are nearly the same.

Myers' greedy algorithm (E. W. Myers, "An O(ND) difference algorithm and its variations", 1986) works in rounds: after
round d it knows on every diagonal the furthest point that d insertions and deletions reach. A round is a few operations
on whole arrays here, because how far a diagonal runs on without any is found by bisection over sums of prefixes.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.int64]

MOST_EDITS: Final = 6000
"""Insertions and deletions; the rounds up to there are kept, 2 bytes a diagonal and round times two, 72 MB in all."""
_SEED: Final = 0x9E3779B97F4A7C15
_WEIGHT: Final = np.uint64(0xBF58476D1CE4E5B9)


class TooDifferentError(ValueError):
    """More insertions and deletions than :data:`MOST_EDITS` lie between two rows."""


def common(before: Row, after: Row, most_edits: int = MOST_EDITS) -> tuple[Row, Row]:
    """Return the positions in ``before`` and in ``after`` of a longest common subsequence, ascending.

    Time grows with the square of the edits, not with the length of the rows.

    Raises:
        TooDifferentError: more than ``most_edits`` insertions and deletions lie between them.
    """
    head = _run(before, after)
    tail = _run(before[head:][::-1], after[head:][::-1])
    old, new = before[head : len(before) - tail], after[head : len(after) - tail]
    inner_old, inner_new = _inside(old, new, most_edits)
    return (
        np.concatenate([np.arange(head), head + inner_old, np.arange(len(before) - tail, len(before))]),
        np.concatenate([np.arange(head), head + inner_new, np.arange(len(after) - tail, len(after))]),
    )


def _run(one: Row, other: Row) -> int:
    """Return how long both rows are the same from their beginning on."""
    shared = min(len(one), len(other))
    differs = np.flatnonzero(one[:shared] != other[:shared])
    return int(differs[0]) if len(differs) else shared


def _inside(old: Row, new: Row, most_edits: int) -> tuple[Row, Row]:
    """Return the common positions of two rows that differ at both ends, or of which one is empty."""
    if not len(old) or not len(new):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    rounds = _rounds(old, new, most_edits)
    pairs_old, pairs_new = [], []
    x, y = len(old), len(new)
    for edits in range(len(rounds) - 1, 0, -1):
        before = rounds[edits - 1]
        diagonal = x - y
        came_down = diagonal == -edits or (
            diagonal != edits and _reach(before, edits - 1, diagonal - 1) < _reach(before, edits - 1, diagonal + 1)
        )
        start_x = _reach(before, edits - 1, diagonal + 1) if came_down else _reach(before, edits - 1, diagonal - 1) + 1
        pairs_old.append(np.arange(start_x, x))
        pairs_new.append(np.arange(start_x, x) - diagonal)
        x = start_x if came_down else start_x - 1
        y = start_x - diagonal - (1 if came_down else 0)
    pairs_old.append(np.arange(x))
    pairs_new.append(np.arange(x))
    return np.concatenate(pairs_old[::-1]), np.concatenate(pairs_new[::-1])


def _reach(furthest: NDArray[np.int32], edits: int, diagonal: int) -> int:
    """Return how far ``diagonal`` (x - y) was reached after ``edits``; those of the other parity do not count."""
    return int(furthest[(diagonal + edits) // 2])


def _rounds(old: Row, new: Row, most_edits: int) -> list[NDArray[np.int32]]:
    """Return the furthest x on each of the diagonals -d, -d + 2, …, d, for 0, 1, 2, … edits d until the end is met."""
    runs = _Runs(old, new)
    furthest = runs.after(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))
    rounds = [furthest.astype(np.int32)]
    goal = len(old) - len(new)
    for edits in range(1, most_edits + 1):
        diagonals = np.arange(-edits, edits + 1, 2)
        x = np.empty(edits + 1, dtype=np.int64)
        # Down from the diagonal above (x stays), or right from the one below (x + 1), whichever is further.
        x[0], x[-1] = furthest[0], furthest[-1] + 1
        x[1:-1] = np.maximum(furthest[1:], furthest[:-1] + 1)
        furthest = runs.after(x, x - diagonals)
        rounds.append(furthest.astype(np.int32))
        if abs(goal) <= edits and (goal + edits) % 2 == 0 and furthest[(goal + edits) // 2] >= len(old):
            return rounds
    raise TooDifferentError(f"more than {most_edits} insertions and deletions")


class _Runs:
    """How far two rows stay the same from given positions on, by sums of prefixes and bisection."""

    def __init__(self, old: Row, new: Row) -> None:
        self._old, self._new = old, new
        self._sums = _sums(_mixed(old)), _sums(_mixed(new))
        self._powers = _powers(max(len(old), len(new)) + 1)

    def after(self, x: Row, y: Row) -> Row:
        """Return the x behind the run that begins at each pair of positions; positions outside begin none."""
        inside = np.flatnonzero((y >= 0) & (x < len(self._old)) & (y < len(self._new)))
        begun = inside[self._old[x[inside]] == self._new[y[inside]]]
        behind = x.copy()
        behind[begun] += self._lengths(x[begun], y[begun])
        return behind

    def _lengths(self, x: Row, y: Row) -> Row:
        """Return the lengths of runs of at least one."""
        low, high = np.ones_like(x), np.minimum(len(self._old) - x, len(self._new) - y)
        while (low < high).any():
            middle = (low + high + 1) // 2
            same = self._same(x, y, middle)
            low, high = np.where(same, middle, low), np.where(same, high, middle - 1)
        return low

    def _same(self, x: Row, y: Row, length: Row) -> NDArray[np.bool_]:
        """Return whether the stretches of ``length`` from x and from y are the same, up to chance."""
        old, new = self._sums
        with np.errstate(over="ignore"):  # all arithmetic here is modulo 2^64
            one = (old[x + length] - old[x]) * self._powers[y]
            other = (new[y + length] - new[y]) * self._powers[x]
        equal: NDArray[np.bool_] = one == other
        return equal


def _mixed(row: Row) -> NDArray[np.uint64]:
    """Return ``row`` with its bits spread, so that sums of weighted numbers seldom agree by chance (splitmix64)."""
    with np.errstate(over="ignore"):
        mixed = row.astype(np.uint64) + np.uint64(_SEED)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))


def _sums(mixed: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the sums of prefixes, each number weighted by the power of its position."""
    with np.errstate(over="ignore"):
        return np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(mixed * _powers(len(mixed)))])


def _powers(count: int) -> NDArray[np.uint64]:
    """Return the first ``count`` powers of the weight."""
    with np.errstate(over="ignore"):
        return np.cumprod(np.full(count, _WEIGHT, dtype=np.uint64), dtype=np.uint64)
