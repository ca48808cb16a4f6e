"""What the run without a limit tells of the one that ran out of memory: both make the same requests until then."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from oomscope.probe.analysis.analyse import rules_of
from oomscope.probe.measurement import FailedAllocation, Measurement
from oomscope.snapshot.replay.gaps import request_as_seen
from oomscope.snapshot.trace import Action, Category, Trace

_BY_LIFETIME: Final = (Category.UNKNOWN, Category.ACTIVATION, Category.TEMPORARY, Category.KEPT)
"""Categories that follow from when a block is freed."""


def told_by(
    whole: Measurement, measurement: Measurement, failed: FailedAllocation
) -> tuple[Measurement, FailedAllocation]:
    """Return ``measurement`` and its failed request with what the ``whole`` run knows better.

    That is the category of a block that follows from its end, the phase after a backward pass, which follows from the
    next events, and the bytes that the program asked for, of which torch tells the size after its own rounding
    (``roundup_power2_divisions``), up to a third more. Both are returned unchanged if the whole run asked for other
    sizes, or lost its beginning.
    """
    trace, event = measurement.trace, failed.event
    request = None if event is None or whole.truncated else same_request(whole.trace, trace, event)
    if request is None:
        return measurement, failed
    made = np.flatnonzero(trace.action[:event] == Action.ALLOC)
    there = np.flatnonzero(whole.trace.action[:request] == Action.ALLOC)
    category, found = trace.category.copy(), whole.trace.category[there]
    # A block that outlives its phase in the whole run is not temporary, even if it has no other category there.
    is_better = (found != Category.UNKNOWN) | (category[made] == Category.TEMPORARY)
    is_better &= np.isin(category[made], _BY_LIFETIME)
    category[made[is_better]] = found[is_better]
    failed = _with_requested_bytes(failed, measurement, int(whole.trace.size[request]))
    trace, failed = _with_phase(replace(trace, category=category), failed, whole.trace, request)
    return replace(measurement, snapshot=replace(measurement.snapshot, traces=(trace,))), failed


def same_request(run: Trace, before: Trace, event: int) -> int | None:
    """Return the event of ``run`` that makes the request of ``event`` in ``before``.

    None if the two asked for other sizes until then, or ``run`` made fewer requests.
    """
    asks = np.flatnonzero(run.action == Action.ALLOC)
    made = before.size[:event][before.action[:event] == Action.ALLOC]
    is_same = len(made) < len(asks) and np.array_equal(run.size[asks[: len(made)]], made)
    return int(asks[len(made)]) if is_same else None


def _with_requested_bytes(failed: FailedAllocation, measurement: Measurement, asked: int) -> FailedAllocation:
    settings = rules_of(measurement).settings()
    is_it = request_as_seen(settings, asked, 0).size == failed.requested_bytes
    return replace(failed, requested_bytes=asked) if is_it and any(settings.roundup_power2_divisions) else failed


def _with_phase(trace: Trace, failed: FailedAllocation, whole: Trace, request: int) -> tuple[Trace, FailedAllocation]:
    """Return the trace and its failed request, with the moment that ``request`` has in the ``whole`` trace.

    A run that fails after a backward pass counts what it did since then as the optimizer's, as nothing follows.
    """
    known, told = failed.moment, whole.moments[whole.moment_id[request]]
    if known.phase != "optimizer" or told == known or told.iteration != known.iteration or known not in trace.moments:
        return trace, failed
    moments = trace.moments if told in trace.moments else (*trace.moments, told)
    moment_id = trace.moment_id.copy()
    elsewhere = np.flatnonzero(moment_id[: failed.event] != moments.index(known))
    moment_id[elsewhere[-1] + 1 if len(elsewhere) else 0 :] = moments.index(told)
    return replace(trace, moments=moments, moment_id=moment_id), replace(failed, moment=told)
