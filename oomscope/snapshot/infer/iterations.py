"""Where the iterations of a recording end: told by the recording, by annotated steps, by optimizer steps, or by rhythm.

The surest source that a recording has is taken, and which one it was is said with the answer. Rhythm, the period of the
sequence of allocations (:mod:`oomscope.snapshot.infer.iterations`), is asked only where no stack tells forward from
backward: within one forward the layers have a rhythm of their own.

The period of a sequence of kinds: the lag at which it agrees with itself, whatever noise there is. One autocorrelation
tells the likely lags; only these are counted exactly, so that a long sequence takes little more than a Fourier
transform.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from oomscope.snapshot.infer.activity import Activity, Doing
from oomscope.snapshot.infer.category_rules import Confidence
from oomscope.snapshot.infer.life import numbered
from oomscope.snapshot.lifetimes import BEFORE, Indices
from oomscope.snapshot.timeline import Timeline
from oomscope.snapshot.trace import Action, Annotation

MIN_PERIOD: Final = 4
"""Allocations below which a repetition is no iteration."""
MIN_AGREEMENT: Final = 0.95
"""Share of allocations that must be the same one period later."""
READINGS: Final = 4
COUNTED: Final = 24
"""Likely periods of each reading that are counted exactly; each takes as long as the sequence is."""
ROUNDING: Final = 1e-6
"""What a Fourier transform may be off by."""


def period_of(kinds: Indices) -> int | None:
    """Return the smallest lag at which a sequence of kinds repeats itself; None where it does not.

    At lag p, ``kinds[i] == kinds[i + p]`` must hold for 95 % of all places, and at least two whole periods be there;
    where few kinds make up most of the sequence, so that places agree at any lag, it must hold for half of those that
    chance leaves. What repeats itself at fewer than :data:`MIN_PERIOD` has no period, although it does so at multiples
    as well. Of the likely lags (:func:`likely_lags`) the agreement is counted exactly.
    """
    if len(kinds) < 2 * MIN_PERIOD:
        return None
    by_chance = float(np.square(np.bincount(kinds) / len(kinds)).sum())
    needed = max(MIN_AGREEMENT, (1 + by_chance) / 2)
    for lag in likely_lags(kinds, needed):
        if np.mean(kinds[:-lag] == kinds[lag:]) >= needed:
            return lag if lag >= MIN_PERIOD else None
    return None


def likely_lags(kinds: Indices, needed: float) -> list[int]:
    """Return lags at which ``needed`` of the places may agree, rising.

    A pair of different kinds adds -1 to 1 to :func:`_agreement`, so no lag that reads below ``2 * needed - 1`` is one.
    A sequence with much noise has a great many above it; the first ones that reach each of some higher readings, too,
    are enough, for a true period stands out among its neighbours.
    """
    lags = np.arange(1, len(kinds) // 2 + 1)
    reading = _agreement(kinds)[lags]
    steps = np.linspace(2 * needed - 1, 1, READINGS, endpoint=False)
    first = [lags[reading >= step - ROUNDING][:COUNTED] for step in steps]
    return [int(lag) for lag in np.unique(np.concatenate(first))]


def _agreement(kinds: Indices) -> NDArray[np.float64]:
    """Return about which share of the sequence agrees with itself, for each lag.

    It is one autocorrelation of random unit vectors, one a kind, of which equal ones give 1 and different ones 0 on
    average.
    """
    length = len(kinds)
    padded = 1 << (2 * length - 1).bit_length()
    angle = np.random.default_rng(0).uniform(0, 2 * np.pi, int(kinds.max()) + 1)
    spectrum = np.fft.fft(np.exp(1j * angle[kinds]), padded)
    correlation = np.fft.ifft(np.abs(spectrum) ** 2)[:length].real
    return np.asarray(correlation / (length - np.arange(length)))


STEP_NAMES: Final = ("ProfilerStep#", "Optimizer.step#")
"""Spans once an iteration (torch/profiler/profiler.py, torch/optim/optimizer.py); the first kind present counts."""
MIN_GIVEN_UP: Final = 0.5
"""Share of blocks that an iteration gives up, in itself or the next; a loop that builds layers repeats, and keeps."""


@dataclass(frozen=True, kw_only=True)
class Iterations:
    """The iterations that a recording shows."""

    ends: Indices
    """Last event of each iteration that is known to have ended, in order; the first may have begun before the
    recording."""
    source: str = "unknown"
    """``recorded``, ``annotations``, ``optimizer steps``, ``rhythm`` or ``unknown``."""
    confidence: Confidence = Confidence.NONE

    def __len__(self) -> int:
        return len(self.ends)


NO_ENDS: Final = np.zeros(0, dtype=np.int64)
NO_ITERATIONS: Final = Iterations(ends=NO_ENDS)


def iterations_of(timeline: Timeline, activity: Activity, annotations: Sequence[Annotation] = ()) -> Iterations:
    """Return the iterations of a trace, from the surest source that shows at least two ends."""
    sources: tuple[tuple[str, Confidence, Callable[[], Indices]], ...] = (
        ("recorded", Confidence.CERTAIN, lambda: _recorded(timeline)),
        ("annotations", Confidence.HIGH, lambda: _annotated(timeline, annotations)),
        ("optimizer steps", Confidence.HIGH, lambda: _after_steps(timeline, activity)),
        ("rhythm", Confidence.LOW, lambda: _rhythm(timeline) if not activity.at.any() else NO_ENDS),
    )
    for source, confidence, find in sources:
        ends = find()
        if len(ends) > 1:
            return Iterations(ends=ends, source=source, confidence=confidence)
    return NO_ITERATIONS


def _recorded(timeline: Timeline) -> Indices:
    """Return ends by the iteration numbers of the events, which must rise."""
    trace = timeline.trace
    numbers = np.array([moment.iteration for moment in trace.moments])[trace.moment_id]
    known = np.flatnonzero(numbers >= 0)
    change = np.diff(numbers[known])
    return known[:-1][change > 0] if len(known) and (change >= 0).all() else NO_ENDS


def _annotated(timeline: Timeline, annotations: Sequence[Annotation]) -> Indices:
    """Return ends by spans that stand once in an iteration."""
    time_us = timeline.trace.time_us
    if not len(time_us) or (time_us < 0).any():
        return NO_ENDS
    for name in STEP_NAMES:
        ended = [mark.time_us for mark in annotations if mark.name.startswith(name) and mark.stage == "END"]
        if ended:
            ends = np.searchsorted(time_us, np.sort(ended), side="right") - 1
            return np.unique(ends[ends >= 0])
    return NO_ENDS


def _after_steps(timeline: Timeline, activity: Activity) -> Indices:
    """Return the last events of the runs that are an optimizer step.

    A step in which the recording ends has ended where it allocates as often as the one before it that did so least.
    """
    stepping = np.append(activity.at == Doing.OPTIMIZER, False)
    ends = np.flatnonzero(stepping[:-1] & ~stepping[1:])
    if not len(ends) or ends[-1] < len(activity.at) - 1:
        return ends
    born = timeline.lifetimes.born[activity.own == Doing.OPTIMIZER]
    allocations = np.bincount(np.searchsorted(ends, born[born != BEFORE]), minlength=len(ends))
    return ends if len(ends) > 1 and allocations[-1] >= allocations[:-1].min() else ends[:-1]


def _rhythm(timeline: Timeline) -> Indices:
    """Return ends by the period of the allocations; an iteration is taken to end where least is alive.

    What is alive is averaged over all periods but the first, which may be part of the set-up.
    """
    trace = timeline.trace
    events = np.flatnonzero(trace.action == Action.ALLOC)
    period = period_of(numbered(trace.stack_id[events], trace.size[events]))
    if period is None or not _gives_up(timeline, events, period):
        return NO_ENDS
    before = events - 1
    whole = before[period : len(before) // period * period].reshape(-1, period)
    least = int(timeline.held[whole].mean(axis=0).argmin())
    ends = before[least::period]
    return np.asarray(ends[ends >= events[0]])


def _gives_up(timeline: Timeline, events: Indices, period: int) -> bool:
    """Return whether most blocks are given up within two periods, of those that were made so long before the end."""
    table = timeline.lifetimes
    inside = table.born != BEFORE
    born = np.searchsorted(events, table.born[inside])
    known = born < len(events) - 2 * period
    freed = np.searchsorted(events, table.freed[inside])
    given_up = (freed - born <= 2 * period)[known]
    return not len(given_up) or float(given_up.mean()) >= MIN_GIVEN_UP
