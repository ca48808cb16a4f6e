"""A foreign trace with what evidence tells of it: the phase and iteration of each event.

A trace that tells its own moments keeps them. What reads moments (peaks by phase, the search for leaks, the place of a
peak) then works on anybody's snapshot.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from oomscope.snapshot.builder import UNKNOWN_MOMENT, Interned
from oomscope.snapshot.infer.activity import Activity, Doing
from oomscope.snapshot.infer.category_rules import Confidence
from oomscope.snapshot.infer.iterations import Iterations
from oomscope.snapshot.infer.numbering import numbered
from oomscope.snapshot.trace import Moment, Trace

PHASES: Final = {
    Doing.UNKNOWN: "",
    Doing.FORWARD: "forward",
    Doing.BACKWARD: "backward",
    Doing.OPTIMIZER: "optimizer",
    Doing.ZERO_GRAD: "zero_grad",
}


def with_moments(trace: Trace, activity: Activity, iterations: Iterations) -> Trace:
    """Return ``trace`` with a phase and an iteration at each event, as far as they are known.

    Iterations count from the beginning of the recording; without a known end none has a number, nor where the ends
    are a guess: rhythm may take two iterations as one, and no rate rests on that.
    """
    if trace.moment_id.any():
        return trace
    are_sure = len(iterations) and iterations.confidence > Confidence.LOW
    numbers = np.searchsorted(iterations.ends, np.arange(len(trace))) if are_sure else np.full(len(trace), -1)
    moments: Interned[Moment] = Interned(UNKNOWN_MOMENT)
    _, first, place = np.unique(numbered(activity.at, numbers), return_index=True, return_inverse=True)
    pairs = zip(activity.at[first].tolist(), numbers[first].tolist(), strict=True)
    ids = [moments.id_of(Moment(PHASES[Doing(doing)], number, -1)) for doing, number in pairs]
    column = np.array(ids, dtype=np.int32)[place] if ids else trace.moment_id
    return replace(trace, moment_id=column, moments=moments.items())
