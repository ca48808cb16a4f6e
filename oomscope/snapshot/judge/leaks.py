"""Memory that grows from iteration to iteration.

What is live at the end of an iteration should not depend on which one it is. A leak, as a tag of the verdict, is there
where it rises at the end of every iteration: by blocks of each iteration that stay, or by a block that is replaced by a
larger one, as ``torch.cat`` does, by the same bytes each time. In a longer recording it may also go up and down, where
lines leave memory at a steady rate (:mod:`oomscope.snapshot.judge.steady`). Suspects are lines of which blocks of
several iterations are alive side by side. What an iteration makes anew and gives up, as gradients are, is alive at
every end too, but always as young.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from oomscope.snapshot.accounting.attribution import SiteOf
from oomscope.snapshot.accounting.lifetimes import BEFORE, Indices
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.judge.steady import Key, steadily_left
from oomscope.snapshot.sites import Site, site_of
from oomscope.snapshot.trace import Category, Trace
from oomscope.snapshot.verdict_types import LeakSuspect
from oomscope.units import KiB, MiB

MIN_ITERATIONS: Final = 3
"""Whole iterations needed: the first one may still create optimizer states, and one step is no trend."""
MIN_GROWTH: Final = MiB
"""Bytes an iteration below which growth is not called a leak (a list of scalar losses is not why memory ran out)."""
MIN_SUSPECT: Final = 64 * KiB
"""Bytes an iteration below which a line is no suspect."""
_LOOKED_AT: Final = 8


def find_leak(
    timeline: Timeline, choose: SiteOf = site_of, *, until: int | None = None, ends_whole: bool = False
) -> LeakSuspect | None:
    """Return the leak that shows before event ``until`` (None: the end), if there is one, by its line of code.

    Each whole iteration must have ended with more held bytes than the one before it, and the same lines must have left
    blocks in each iteration after the first that are all alive right before ``until``, or replaced a block by one that
    is larger by as much each time; else lines must have left blocks at a steady rate. A copy of the weights that the
    second iteration makes, once, is no leak, nor is what is freed before the failure, nor are states of the optimizer,
    which it makes as parameters come to be trained.
    """
    ends = _iteration_ends(timeline, until, ends_whole=ends_whole)
    if len(ends) < MIN_ITERATIONS:
        return None
    rises = (np.diff(timeline.held[ends]) > 0).all()
    left = (_piled_up(timeline, ends, until) if rises else {}) or steadily_left(timeline, ends, until)
    mean = sum(left.values()) // (len(ends) - 1)
    if mean < MIN_GROWTH:
        return None
    by_site: Counter[Site | None] = Counter()
    for (own, forward, _), size in left.items():
        by_site[choose(timeline.trace.stacks[forward or own], "")] += size  # one line, in whichever modules it runs
    most = max(by_site, key=by_site.__getitem__)
    lines = {(site.file, site.line) for site, size in by_site.items() if site and size >= MIN_SUSPECT * (len(ends) - 1)}
    further = len(lines - {(most.file, most.line)}) if most else 0
    return LeakSuspect(bytes_per_iteration=mean, iterations=len(ends), site=most, further_lines=further)


def grows(timeline: Timeline) -> bool:
    """Whether each whole iteration ended with clearly more than the one before, whatever it is."""
    ends = _iteration_ends(timeline, None, ends_whole=True)
    return len(ends) >= MIN_ITERATIONS and bool((np.diff(timeline.held[ends]) >= MIN_GROWTH).all())


def piles_up(timeline: Timeline) -> bool:
    """Whether the same lines left memory in each iteration, also where something else was freed meanwhile."""
    ends = _iteration_ends(timeline, None, ends_whole=True)
    if len(ends) < MIN_ITERATIONS:
        return True
    return sum(_piled_up(timeline, ends, None).values()) >= MIN_GROWTH * (len(ends) - 1)


def _piled_up(timeline: Timeline, ends: Indices, until: int | None) -> dict[Key, int]:
    """Return, by stack, forward stack and module, the bytes that all iterations after the first left."""
    return _left_in_each_iteration(timeline, ends, until) | _grown_in_each_iteration(timeline, ends)


def undecided_growth(timeline: Timeline) -> int:
    """Return by how many bytes the second of only two iterations ended with more than the first; else 0.

    The recording ends after a whole iteration, as a probe's does.
    """
    ends = _iteration_ends(timeline, None, ends_whole=True)
    if len(ends) != MIN_ITERATIONS - 1:
        return 0
    growth = int(timeline.held[ends[1]] - timeline.held[ends[0]])
    return growth if growth >= MIN_GROWTH else 0


def _iteration_ends(timeline: Timeline, until: int | None, *, ends_whole: bool = False) -> Indices:
    """Return the last event of each whole iteration's optimizer step, in order; iteration numbers must rise.

    Unless ``ends_whole`` a step that the end cuts off, with fewer events than the one before it, is none; neither is
    the rest of a step with which the iteration that did not end begins. Where no step is known, or none allocates, it
    is the last event of each iteration that another one follows.
    """
    trace = timeline.trace
    moments = trace.moment_id[:until]
    iterations = np.array([moment.iteration for moment in trace.moments])[moments]
    known = np.flatnonzero(iterations >= 0)
    if not len(known) or (np.diff(iterations[known]) < 0).any():
        return np.zeros(0, dtype=np.int64)
    in_step = np.array([moment.phase == "optimizer" for moment in trace.moments])[moments]
    steps = known[in_step[known]]
    if not len(steps):
        return known[np.flatnonzero(np.diff(iterations[known]) > 0)]
    places = np.append(np.flatnonzero(np.diff(iterations[steps]) > 0), len(steps) - 1)
    sizes = np.diff(places, prepend=-1)
    is_cut = (
        not ends_whole
        and len(places) > 1
        and (
            (steps[-1] == len(moments) - 1 and sizes[-1] < sizes[-2])
            or steps[-1] - steps[places[-2]] == places[-1] - places[-2]
        )
    )
    ends: Indices = steps[places[:-1] if is_cut else places]
    return ends


def _left_in_each_iteration(timeline: Timeline, ends: Indices, until: int | None) -> dict[Key, int]:
    """Return, by stack, forward stack and module, the bytes of what every iteration after the first left behind.

    A block counts if it is alive at the last of ``ends`` and right before ``until``; stacks count if they left such
    blocks in each of the iterations. A gradient is replaced in every iteration. It shares the forward stack of an
    output that may be kept, so its own stack must tell them apart.
    """
    table, trace = timeline.lifetimes, timeline.trace
    alive = (table.born > ends[0]) & (table.born <= ends[-1]) & (table.freed > ends[-1])
    alive[alive] = trace.category[table.born[alive]] != Category.OPTIMIZER_STATE
    rows = np.flatnonzero(alive if until is None else alive & (table.freed >= until))
    born = table.born[rows]
    seen: dict[Key, set[int]] = {}
    totals: Counter[Key] = Counter()
    iterations = np.searchsorted(ends, born).tolist()
    for key, iteration, size in zip(_keys(trace, born), iterations, table.size[rows].tolist(), strict=True):
        seen.setdefault(key, set()).add(iteration)
        totals[key] += size
    return {key: total for key, total in totals.items() if len(seen[key]) == len(ends) - 1}


def _grown_in_each_iteration(timeline: Timeline, ends: Indices) -> dict[Key, int]:
    """Return, by stack, forward stack and module, the bytes by which what is made anew in each iteration has grown.

    A stack counts if its blocks that are alive at the end of an iteration, and younger than the end before, have grown
    by the same bytes each time, while all else that an iteration allocates stays as large: with growing batches it does
    not. Where it makes nothing in the first iteration, whose tensor may come from elsewhere, the second one is that
    growth, or twice it. To a hundredth; for a long recording the last iterations decide.
    """
    table, trace = timeline.lifetimes, timeline.trace
    last = ends[-_LOOKED_AT:]
    sizes: dict[Key, list[int]] = {}
    for number, end in enumerate(last.tolist()):
        since = int(last[number - 1]) if number else BEFORE
        rows = table.held_at(end)
        born = table.born[rows]
        rows, born = rows[born > since], born[born > since]
        found: Counter[Key] = Counter()
        for key, size in zip(_keys(trace, born), table.size[rows].tolist(), strict=True):
            found[key] += size
        for key, size in found.items():
            sizes.setdefault(key, [0] if number == 1 else []).append(size)
    rows = np.flatnonzero((table.born > last[0]) & (table.born <= last[-1]))
    born, made = table.born[rows], table.size[rows]
    iteration = np.searchsorted(last, born) - 1
    grown: dict[Key, int] = {}
    for key, each in sizes.items():
        if len(each) < len(last):
            continue
        steps = np.diff(each)
        if each[0] == 0 and len(steps) > 1 and _are_alike(np.array([steps[0], 2 * steps[1]])):
            steps = steps[1:]
        if steps.min() < MIN_GROWTH or not _are_alike(steps):
            continue
        stack, forward, module = (
            column[born] == value
            for column, value in zip((trace.stack_id, trace.forward_stack_id, trace.module_id), key, strict=True)
        )
        others = np.where(stack & forward & module, 0, made)
        if _are_alike(np.bincount(iteration, weights=others, minlength=len(last) - 1)):
            grown[key] = int(steps.mean()) * (len(ends) - 1)
    return grown


def _keys(trace: Trace, born: Indices) -> Iterator[Key]:
    """Yield stack, forward stack and module of allocations."""
    columns = trace.stack_id[born], trace.forward_stack_id[born], trace.module_id[born]
    return zip(*(column.tolist() for column in columns), strict=True)


def _are_alike(sizes: NDArray[Any]) -> bool:
    """Whether the sizes differ by no more than a hundredth."""
    return bool(sizes.max() - sizes.min() <= 0.01 * sizes.max())


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A line whose requested bytes grow from iteration to iteration."""

    site: Site | None
    bytes: int
    """Bytes alive at the end of the last iteration."""
    count: int
    iterations: int
    """Number of iterations that these blocks are from."""
    bytes_per_iteration: int
    """Bytes left on average, after the first iteration that left anything: it may leave more, since it also creates
    what stays."""


def suspects_of(timeline: Timeline, ends: Indices) -> tuple[Suspect, ...]:
    """Return the suspects, largest first, by the last event of each iteration; it takes three iterations to see any."""
    if len(ends) < MIN_ITERATIONS:
        return ()
    table, trace = timeline.lifetimes, timeline.trace
    rows = table.held_at(int(ends[-1]))
    rows = rows[table.born[rows] != BEFORE]
    found: dict[Site | None, list[tuple[int, int]]] = {}
    for row, iteration in zip(rows.tolist(), np.searchsorted(ends, table.born[rows]).tolist(), strict=True):
        born = table.born[row]
        site = site_of(trace.stacks[trace.stack_id[born]])
        found.setdefault(site, []).append((iteration, int(table.size[row])))
    suspects = [
        Suspect(
            site=site,
            bytes=sum(size for _, size in blocks),
            count=len(blocks),
            iterations=len({iteration for iteration, _ in blocks}),
            bytes_per_iteration=_bytes_per_iteration(blocks, before=len(ends) - 1),
        )
        for site, blocks in found.items()
    ]
    grown = (suspect for suspect in suspects if suspect.bytes_per_iteration >= MIN_SUSPECT)
    return tuple(sorted(grown, key=lambda suspect: -suspect.bytes))


def _bytes_per_iteration(blocks: list[tuple[int, int]], *, before: int) -> int:
    """Return what an iteration left on average, from after the first to the last that left any of ``blocks``.

    What is made from iteration ``before`` on is too young to count. 0 where no second iteration left any, or where none
    has for longer than ever before: that has come to its end.
    """
    left = [(iteration, size) for iteration, size in blocks if iteration < before]
    numbers = sorted({iteration for iteration, _ in left})
    if len(numbers) < 2 or before - 1 - numbers[-1] >= int(np.diff(numbers).max()):
        return 0
    return sum(size for iteration, size in left if iteration > numbers[0]) // (numbers[-1] - numbers[0])
