"""Which allocation of one recording is which of another, of the same program: by order, size and function.

Allocations that agree in size and function are paired first, by a longest common subsequence; line numbers do not
matter, so that an edit above does not. What is left between two pairs is paired by the function alone (the size
differs); where no function is common, by the size alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oomscope.errors import InputError
from oomscope.snapshot.compare.shortest_edit import TooDifferentError, common
from oomscope.snapshot.sites import Site, site_of
from oomscope.snapshot.trace import Action, Moment, Trace

Indices = NDArray[np.int64]

_PATH_PARTS: Final = 2
"""Of a file's path these last parts tell it from others: programs lie elsewhere on another machine."""


class Place(NamedTuple):
    """A function wherever its program lies."""

    file: str
    function: str


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Alloc events of both recordings, ascending, those at the same position being one and the same allocation."""

    before: Indices
    after: Indices
    only_before: Indices
    """Alloc events without a counterpart."""
    only_after: Indices


def paired(before: Trace, after: Trace) -> Pairs:
    """Return the pairs of ``before`` and ``after``.

    Raises:
        InputError: the two are too different to be of the same program.
    """
    sides = _Side.of(before), _Side.of(after)
    try:
        pairs = _paired(*sides, np.arange(len(sides[0].events)), np.arange(len(sides[1].events)))
    except TooDifferentError:
        pairs = _by_stretches(*sides)
    old, new = (np.array(column, dtype=np.int64) for column in (pairs[0], pairs[1]))
    events = sides[0].events, sides[1].events
    return Pairs(
        before=events[0][old],
        after=events[1][new],
        only_before=np.delete(events[0], old),
        only_after=np.delete(events[1], new),
    )


class _Side(NamedTuple):
    """The allocations of one trace."""

    events: Indices
    sizes: list[int]
    places: list[Place | None]
    moments: list[Moment]

    @classmethod
    def of(cls, trace: Trace) -> _Side:
        events = np.flatnonzero(trace.action == Action.ALLOC)
        known: dict[tuple[int, int], Place | None] = {}
        places = []
        for stack, module in zip(trace.stack_id[events].tolist(), trace.module_id[events].tolist(), strict=True):
            if (stack, module) not in known:
                known[stack, module] = place_of(site_of(trace.stacks[stack]))
            places.append(known[stack, module])
        moments = [trace.moments[number] for number in trace.moment_id[events].tolist()]
        return cls(events, trace.size[events].tolist(), places, moments)


def place_of(site: Site | None) -> Place | None:
    """Return the function that ``site`` is in, without the folders that its program lies in."""
    if site is None:
        return None
    return Place("/".join(site.file.split("/")[-_PATH_PARTS:]), site.function)


def _paired(old: _Side, new: _Side, mine: Indices, other: Indices) -> tuple[Indices, Indices]:
    """Return which of the allocations ``mine`` of ``old`` are which of ``other`` of ``new``."""
    exact = _common([(old.sizes[i], old.places[i]) for i in mine], [(new.sizes[i], new.places[i]) for i in other])
    found_old, found_new = [mine[exact[0]]], [other[exact[1]]]
    for gap_old, gap_new in _gaps(exact, len(mine), len(other)):
        left_old, left_new = mine[gap_old], other[gap_new]
        near = _common([old.places[i] for i in left_old], [new.places[i] for i in left_new])
        if not len(near[0]):
            near = _common([old.sizes[i] for i in left_old], [new.sizes[i] for i in left_new])
        found_old.append(left_old[near[0]])
        found_new.append(left_new[near[1]])
    all_old, all_new = np.concatenate(found_old), np.concatenate(found_new)
    order = np.argsort(all_old)
    return all_old[order], all_new[order]


def _gaps(pairs: tuple[Indices, Indices], old: int, new: int) -> list[tuple[slice, slice]]:
    """Return the stretches between neighbouring pairs in which both sides have something left."""
    ends_old, ends_new = ([-1, *column.tolist(), length] for column, length in zip(pairs, (old, new), strict=True))
    return [
        (slice(ends_old[at] + 1, ends_old[at + 1]), slice(ends_new[at] + 1, ends_new[at + 1]))
        for at in range(len(ends_old) - 1)
        if ends_old[at] + 1 < ends_old[at + 1] and ends_new[at] + 1 < ends_new[at + 1]
    ]


def _by_stretches(old: _Side, new: _Side) -> tuple[Indices, Indices]:
    """Pair the allocations of each phase with those of the same phase, where the whole is too different.

    Raises:
        InputError: neither says when it allocates, or a phase is too different by itself.
    """
    stretches = _stretches(old), _stretches(new)
    same = _common([moment for moment, _ in stretches[0]], [moment for moment, _ in stretches[1]])
    try:
        found = [_paired(old, new, stretches[0][i][1], stretches[1][j][1]) for i, j in zip(*same, strict=True)]
    except TooDifferentError as error:
        raise InputError(
            f"the recordings are too different to be aligned: {error}",
            remedy="compare two of the same program, or leave --align out",
        ) from None
    return np.concatenate([one for one, _ in found]), np.concatenate([other for _, other in found])


def _stretches(side: _Side) -> list[tuple[Moment, Indices]]:
    """Return the runs of allocations with one moment."""
    numbers: dict[Moment, int] = {}
    ids = np.array([numbers.setdefault(moment, len(numbers)) for moment in side.moments])
    cuts = np.flatnonzero(np.diff(ids)) + 1
    parts = np.split(np.arange(len(ids)), cuts) if len(ids) else []
    return [(side.moments[part[0]], part) for part in parts]


def _common(old: Sequence[Hashable], new: Sequence[Hashable]) -> tuple[Indices, Indices]:
    """Return the positions of a longest common subsequence of any values; None is like nothing."""
    numbers: dict[Hashable, int] = {}
    alone = iter(range(-1, -len(old) - len(new) - 1, -1))
    rows = [
        np.array([next(alone) if each is None else numbers.setdefault(each, len(numbers)) for each in side], np.int64)
        for side in (old, new)
    ]
    return common(rows[0], rows[1])
