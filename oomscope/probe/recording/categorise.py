"""Gives a trace's blocks their categories afterwards, from the labels that were recorded while the program ran.

An allocation on the card does not say what it is for. A label (this storage is a parameter) names an address and
how many blocks had been allocated by then; the block that held the address is found in the trace. The rest follows
from size and lifetime: workspaces of cuBLAS have known sizes, what outlives the forward pass that made it is an
activation, what does not outlive its phase is a temporary.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from oomscope.probe.recording.block_label import BlockLabel
from oomscope.snapshot.accounting.lifetimes import BEFORE, Indices, Lifetimes
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.distributed_frames import BUCKETS, COLLECTIVES, WEIGHTS, ZERO_BUCKETS, ZERO_GRADIENTS, Place
from oomscope.snapshot.trace import Action, Category, Moment, Trace
from oomscope.units import MiB

_FORWARD = ("forward", "loss")
_TORCHS_OWN = re.compile(r"(^|/)torch/")
_STATES_OF_KERAS = Place(r"(^|/)keras/src/optimizers/base_optimizer\.py$", r"^add_variable")
"""File in which Keras makes the states of its optimizers, at the first call of ``fit`` within a forward pass. States of
``torch.optim`` are labelled."""
_SMALL_WORKSPACE = MiB
"""Workspaces up to this are of a size that many tensors have."""


def categorise(
    timeline: Timeline,
    labels: Iterable[BlockLabel],
    *,
    allocations: int | None = None,
    workspaces: Collection[int] = (),
    keeps_workspaces: bool = False,
) -> Trace:
    """Return the timeline's trace with the categories of its alloc events filled in.

    Labels take precedence over categories that the trace already has, and those over inference by lifetime.

    Args:
        timeline: the trace and the final segments.
        labels: in the order in which they were recorded.
        allocations: blocks that the allocator had handed out when the trace ended; None for those of the trace.
        workspaces: sizes in bytes that cuBLAS's workspaces have.
        keeps_workspaces: whether torch keeps them.
    """
    trace, table = timeline.trace, timeline.lifetimes
    if not len(trace):
        return trace
    category = trace.category.copy()
    found = _labelled_blocks(trace, table, labels, allocations)
    of_stack = _stacks_of(trace)
    sized = np.flatnonzero((table.born != BEFORE) & np.isin(table.size, list(workspaces)))
    is_known = np.isin(sized, list(found)) | np.isin(trace.stack_id[table.born[sized]], of_stack.weights)
    for row in _workspaces(trace, table, sized[~is_known], keeps_workspaces):
        category[table.born[row]] = Category.WORKSPACE
    received = []
    for row, kind in found.items():
        if kind is Category.COMMUNICATION:
            received.append(row)
        elif kind is Category.GRADIENT and trace.stack_id[table.born[row]] in of_stack.zero_buckets:
            category[table.born[row]] = Category.COMMUNICATION
        else:
            category[table.born[row]] = kind
    unlabelled = np.flatnonzero((table.born != BEFORE) & (category[table.born] == Category.UNKNOWN))
    by_lifetime = _by_lifetime(trace, table, unlabelled)
    passing = by_lifetime != Category.ACTIVATION
    by_lifetime[passing & np.isin(unlabelled, received)] = Category.COMMUNICATION
    stacks = trace.stack_id[table.born[unlabelled]]
    by_lifetime[passing & np.isin(stacks, of_stack.collectives)] = Category.COMMUNICATION
    by_lifetime[np.isin(stacks, of_stack.buckets + of_stack.zero_buckets)] = Category.COMMUNICATION
    by_lifetime[np.isin(stacks, of_stack.zero_gradients)] = Category.GRADIENT
    by_lifetime[np.isin(stacks, of_stack.weights)] = Category.PARAMETER
    by_lifetime[(by_lifetime != Category.TEMPORARY) & np.isin(stacks, of_stack.states)] = Category.OPTIMIZER_STATE
    category[table.born[unlabelled]] = by_lifetime
    return replace(trace, category=category)


class _StacksOfLibraries(NamedTuple):
    """Numbers of stacks by what libraries allocate there: torch and DeepSpeed for several ranks, Keras as states."""

    weights: list[int]
    buckets: list[int]
    collectives: list[int]
    states: list[int]
    zero_buckets: list[int]
    zero_gradients: list[int]


def _stacks_of(trace: Trace) -> _StacksOfLibraries:
    found = _StacksOfLibraries([], [], [], [], [], [])
    for number, stack in enumerate(trace.stacks):
        if any(_STATES_OF_KERAS.holds(frame.filename, frame.name) for frame in stack):
            found.states.append(number)
        for frame in stack:
            where = frame.filename, frame.name
            if ZERO_BUCKETS.holds(*where):
                found.zero_buckets.append(number)
            if ZERO_GRADIENTS.holds(*where):
                found.zero_gradients.append(number)
            if any(place.holds(*where) for place in WEIGHTS):
                found.weights.append(number)
            elif BUCKETS.holds(*where):
                found.buckets.append(number)
            elif COLLECTIVES.holds(*where):
                found.collectives.append(number)
            elif _TORCHS_OWN.search(frame.filename):
                continue
            break
    return found


def _labelled_blocks(
    trace: Trace, table: Lifetimes, labels: Iterable[BlockLabel], allocations: int | None
) -> dict[int, Category]:
    """Return the category of each labelled block; the last label of a block counts.

    A communication label counts only where a block has no other. Main gradients stay what they are where a program
    also sets them as gradients of what its optimizer steps.
    """
    is_alloc = trace.action == Action.ALLOC
    before = 0 if allocations is None else allocations - int(is_alloc.sum())
    ordinal = np.cumsum(is_alloc) + before
    rows_at: defaultdict[int, list[int]] = defaultdict(list)
    for row in np.argsort(table.born, kind="stable").tolist():
        if table.born[row] != BEFORE:
            rows_at[int(table.address[row])].append(row)
    found: dict[int, Category] = {}
    for address, number, kind in labels:
        rows = rows_at.get(address, [])
        position = bisect_right(rows, number, key=lambda row: int(ordinal[table.born[row]])) - 1
        if position < 0:
            continue
        known = found.get(rows[position])
        is_weaker = kind is Category.COMMUNICATION or (kind, known) == (Category.GRADIENT, Category.MAIN_GRADIENT)
        if known is None or not is_weaker:
            found[rows[position]] = kind
    return found


def _workspaces(trace: Trace, table: Lifetimes, rows: Indices, keeps: bool) -> Iterator[int]:
    """Yield those of ``rows``, blocks of a workspace's size, that are workspaces of matrix products.

    They are freed before anything else is allocated, most often right after the product itself. Torch that keeps them
    allocates one for each thread and stream at its first product, which may write its result into what is there.
    """
    allocs = np.flatnonzero(trace.action == Action.ALLOC)
    place = np.searchsorted(allocs, table.born[rows])
    neighbours = np.concatenate(([-1], allocs, [len(trace)]))
    follows = _same_place(trace, neighbours[place], table.born[rows])
    brief = table.freed[rows] < neighbours[place + 2]
    yield from rows[brief & (follows | (table.size[rows] > _SMALL_WORKSPACE))].tolist()
    if keeps:
        lasting = table.freed[rows] >= len(trace)
        iterations = np.array([moment.iteration for moment in trace.moments])[_moments_at(trace)][table.born[rows]]
        yield from _first_of_each(trace, table, rows[lasting & follows], rows[lasting & (iterations >= 0)])


def _first_of_each(trace: Trace, table: Lifetimes, *preferred: Indices) -> Iterator[int]:
    """Yield the oldest block of each thread and stream; rows of the first list count before those of the next."""
    found: set[tuple[int, bool]] = set()
    for rows in preferred:
        for row in rows[np.argsort(table.born[rows])].tolist():
            key = int(table.stream[row]), bool(trace.stack_id[table.born[row]] == 0)
            if key not in found:
                found.add(key)
                yield row


def _same_place(trace: Trace, first: Indices, second: Indices) -> NDArray[np.bool_]:
    """Return which pairs of allocations come from one line, or from the gradient of one; -1 stands for none."""
    columns = (trace.stack_id, trace.forward_stack_id, trace.moment_id)
    same = [column[first] == column[second] for column in columns]
    return np.asarray(np.all(same, axis=0) & (first >= 0))


def _by_lifetime(trace: Trace, table: Lifetimes, rows: Indices) -> NDArray[np.int8]:
    """Return the category of each of ``rows`` by where it was born and where it was freed.

    A failed allocation cuts a phase short: what was alive then had not come to its end.
    """
    born, freed = table.born[rows], table.freed[rows]
    moments = _moments_at(trace)
    phases = np.array([moment.phase for moment in trace.moments])[moments][born]
    is_forward = np.isin(phases, _FORWARD)
    last = _end_of_run(_passes(trace)[moments])[born]
    failed = np.flatnonzero(trace.action == Action.OOM)
    failure = np.append(failed, len(trace))[np.searchsorted(failed, born)]
    ends_inside = (freed <= np.minimum(last, failure)) | (~is_forward & ((failure <= last) | (last == len(trace) - 1)))
    result = np.full(len(rows), Category.UNKNOWN, dtype=np.int8)
    result[is_forward & ~ends_inside] = Category.ACTIVATION
    result[is_forward & ends_inside] = Category.TEMPORARY
    result[ends_inside & ~np.isin(phases, ("", "init"))] = Category.TEMPORARY
    result[_is_kept(trace, moments, born, freed)] = Category.KEPT
    return result


def _is_kept(trace: Trace, moments: Indices, born: Indices, freed: Indices) -> NDArray[np.bool_]:
    """Return which blocks were made during an iteration, or before the first, and are alive at the end of the next one.

    A next iteration that never came to its optimizer decides nothing: until then variables of the loop, such as the
    loss, still hold what the iteration before left.
    """
    iterations = np.array([moment.iteration for moment in trace.moments])[moments]
    steps = np.array([moment.phase == "optimizer" for moment in trace.moments])[moments]
    last = {int(number): int(np.flatnonzero(iterations == number)[-1]) for number in np.unique(iterations[steps])}
    after = np.array([last.get(max(int(number), 0) + 1, len(trace)) for number in iterations[born]], dtype=np.int64)
    return np.asarray(freed > after)


def _moments_at(trace: Trace) -> Indices:
    """Return each event's moment; one without any, of a thread that is not followed, has that before it."""
    known = np.where(trace.moment_id > 0, np.arange(len(trace)), 0)
    place = np.maximum.accumulate(known) if len(trace) else known
    return trace.moment_id[place].astype(np.int64)


def _passes(trace: Trace) -> Indices:
    """Return for each moment the number of its pass: forward and loss of a microbatch are one."""
    numbers: dict[Moment, int] = {}
    of = [moment._replace(phase="forward") if moment.phase in _FORWARD else moment for moment in trace.moments]
    return np.array([numbers.setdefault(moment, len(numbers)) for moment in of], dtype=np.int64)


def _end_of_run(values: Indices) -> Indices:
    """Return for each position the last one of the run of equal values that it lies in."""
    ends = np.append(np.flatnonzero(np.diff(values)), len(values) - 1)
    return ends[np.searchsorted(ends, np.arange(len(values)))]
