"""The life of each block in the terms of training: what the program did when it was born, and when it was freed.

One column a fact, one row a block, in the order of the lifetimes; the rules of categories are conditions on these.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from oomscope.snapshot.accounting.lifetimes import BEFORE, Indices
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.infer.activity import Activity, Mark, Phase
from oomscope.snapshot.sites import is_python
from oomscope.snapshot.trace import Action, Trace

Mask = NDArray[np.bool_]


class Life(NamedTuple):
    """What is known of each block."""

    size: Indices
    """Requested bytes of the block."""
    own: NDArray[np.int8]
    """:class:`Phase` by its own stack or metadata."""
    born_in: NDArray[np.int8]
    """:class:`Phase` carried on from the last allocation that shows one; unknown before the first, and after an
    annotated step that no forward or backward is seen to follow."""
    freed_in: NDArray[np.int8]
    """:class:`Phase` when it was freed; unknown where it never was."""
    marks: NDArray[np.int32]
    """:class:`Mark` of its stack."""
    older: Mask
    """Whether the block was alive before the recording."""
    lasting: Mask
    """Whether it was alive when the recording ended."""
    same_span: Mask
    """Whether it was freed in the run of events of one phase in which it was allocated."""
    at_setup: Mask
    """Whether it was allocated before any event showed a phase."""
    brief: Mask
    """Whether it was freed before anything else was allocated."""
    follows: Mask
    """Whether the same stack made the allocation right before, as for the workspace of a product after its result."""
    cut_off: Mask
    """Whether the end of the recording, or the request that ended the run, fell into its run of events while it was
    alive."""
    steps_outlived: Indices
    """Number of optimizer steps that began and ended during its life."""
    alone: Mask
    """Whether no other block that lasts to the end was made on the same stream, in the same phase, in the same size."""
    like_temporaries: Mask
    """Whether at least half of the blocks of its stack and size whose end is known were freed in their run of known
    phase, one of them at this age or later."""
    like_gone: Mask
    """Whether its stack has blocks whose end is known, and all of them were freed in their run."""
    like_kept: Mask
    """Whether most blocks of its stack whose end is known outlived their run."""
    first_of_buffers: Mask
    """Allocated by the first of the lines that make contiguous buffers in one function."""

    def marked(self, mark: Mark) -> Mask:
        """Return which blocks have a frame with ``mark``."""
        return np.asarray((self.marks & mark) != 0)

    def made_in(self, phase: Phase) -> Mask:
        """Return which blocks a stack or metadata says to be made while ``phase``."""
        return np.asarray(self.own == phase)

    def between(self, phase: Phase) -> Mask:
        """Return which blocks without evidence of their own were made after ``phase`` began, before another did."""
        return np.asarray((self.own == Phase.UNKNOWN) & (self.born_in == phase) & ~self.older)

    @property
    def of_setup(self) -> Mask:
        """Which blocks were made before any forward, backward or step, and are there to stay."""
        return self.between(Phase.UNKNOWN) & self.at_setup & (self.lasting | (self.steps_outlived > 0))


def life_of(timeline: Timeline, activity: Activity) -> Life:
    """Return what is known of each block's birth and end."""
    trace, table = timeline.trace, timeline.lifetimes
    end = len(trace)
    older, lasting = table.born == BEFORE, table.freed >= table.end
    at, after = (np.append(each, np.int8(Phase.UNKNOWN)) for each in (activity.at, activity.after))
    told = np.append(np.maximum.accumulate(activity.at != Phase.UNKNOWN), True)
    span = np.append(activity.span, activity.span[-1:] if end else [0])
    born = np.where(older, end, table.born)
    freed = np.where(lasting | (table.freed < 0), end, table.freed)
    in_its_span = (span[born] == span[freed]) & ~older
    failure = _last_failure(trace, activity, table.born)
    cut_off = in_its_span & (lasting | ((born < failure) & (failure < freed)))
    same_span = in_its_span & ~cut_off
    stack = np.where(older, -1, np.append(trace.stack_id, 0)[born])
    begun, ended = _steps(activity)
    before, following = _neighbours(trace, born)
    stacks = np.append(trace.stack_id, -1)
    in_known_span = same_span & (at[born] != Phase.UNKNOWN)
    like = numbered(stack, table.size)
    ends_known = _count(~cut_off, like)
    line = numbered(activity.own, stack)
    gone, of_line = _count(same_span, line), _count(~cut_off, line)
    oldest = np.full(int(like.max(initial=-1)) + 1, -1)
    np.maximum.at(oldest, like[in_known_span], (freed - born)[in_known_span])
    return Life(
        size=table.size,
        own=activity.own,
        born_in=after[born],
        freed_in=at[freed],
        marks=activity.marks,
        older=older,
        lasting=lasting,
        same_span=same_span,
        at_setup=~told[born],
        brief=same_span & (freed < following),
        follows=~older & (stacks[born] == stacks[before]),
        cut_off=cut_off,
        steps_outlived=ended[freed] - np.where(older, 0, begun[born]),
        alone=_count(lasting, numbered(activity.own, table.stream, table.size)) == 1,
        like_temporaries=(2 * _count(in_known_span, like) >= ends_known) & (freed - born <= oldest[like]),
        like_gone=(stack > 0) & (gone == of_line) & (gone > 0),
        like_kept=(stack > 0) & (2 * gone < of_line),
        first_of_buffers=_first_of_buffers(trace, activity.marks, np.where(older, end, table.born)),
    )


def _last_failure(trace: Trace, activity: Activity, born: Indices) -> int:
    """Return the request that failed last, if what was held then was freed unused; else the end of the trace.

    A program that goes on to allocate for training, in the same run of events, has caught the error.
    """
    failed = np.flatnonzero(trace.action == Action.OOM)
    if not len(failed):
        return len(trace)
    last = int(failed[-1])
    later = born[(born > last) & (activity.own != Phase.UNKNOWN)]
    return len(trace) if np.any(activity.span[later] == activity.span[last]) else last


def numbered(*columns: NDArray[np.integer]) -> Indices:
    """Return for each row the number of its combination of values.

    Column by column, since sorting rows as a whole (``np.unique`` with an axis) takes ten times as long.
    """
    numbers = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values, place = np.unique(column, return_inverse=True)
        _, numbers = np.unique(numbers * len(values) + place, return_inverse=True)
    return numbers.astype(np.int64)


def _count(holds: Mask, group: Indices) -> Indices:
    """Return for each row how many of its group ``holds`` is true of."""
    return np.bincount(group, weights=holds, minlength=1)[group].astype(np.int64)


def _neighbours(trace: Trace, born: Indices) -> tuple[Indices, Indices]:
    """Return the allocations before and behind each birth; the end of the trace where there is none."""
    end = len(trace)
    allocations = np.concatenate(([end], np.flatnonzero(trace.action == Action.ALLOC), [end, end]))
    place = np.searchsorted(allocations[1:-1], born) + 1
    return allocations[place - 1], allocations[np.minimum(place + 1, len(allocations) - 1)]


def _steps(activity: Activity) -> tuple[Indices, Indices]:
    """Return how many optimizer steps have begun, and how many have ended, at each event and at the end."""
    stepping = activity.at == Phase.OPTIMIZER
    begun = np.cumsum(stepping & ~np.append(False, stepping[:-1])) if len(stepping) else np.zeros(0, np.int64)
    ended = begun - stepping
    begun, ended = (np.append(each, each[-1:] if len(each) else [0]) for each in (begun, ended))
    return begun + activity.silent_steps, ended + activity.silent_steps


def _first_of_buffers(trace: Trace, marks: NDArray[np.int32], born: Indices) -> Mask:
    """Megatron-Core's ``_ParamAndGradBuffer`` allocates the parameters' buffer, where it has one, before the other."""
    chosen = np.zeros(len(marks), dtype=bool)
    lines: dict[tuple[str, str], set[int]] = {}
    places: dict[int, tuple[tuple[str, str], int]] = {}
    for row in np.flatnonzero((marks & Mark.GRAD_BUFFER != 0) & (born < len(trace))).tolist():
        frame = next(frame for frame in trace.stacks[trace.stack_id[born[row]]] if is_python(frame))
        places[row] = ((frame.filename, frame.name), frame.line)
        lines.setdefault(places[row][0], set()).add(frame.line)
    for row, (function, line) in places.items():
        chosen[row] = len(lines[function]) > 1 and line == min(lines[function])
    return chosen
