"""Incidents of the allocator during a recording: requests that failed, memory given back, and retries after that.

``empty_cache`` and a request that the driver refused look alike in a trace;
:func:`~oomscope.snapshot.replay.releases.releases_of` tells them apart.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from oomscope.snapshot.replay.pools import GIVEN_BACK
from oomscope.snapshot.replay.releases import releases_of
from oomscope.snapshot.timeline import Timeline
from oomscope.snapshot.trace import Action


class Incident(NamedTuple):
    """One of them."""

    event: int
    kind: Literal["oom", "retry", "flush"]
    """``retry``: the driver refused memory, and cached segments were given back for it; ``flush``: the program gave
    them back."""
    bytes: int
    """Asked for, or given back."""


def incidents_of(timeline: Timeline) -> tuple[Incident, ...]:
    """Return the incidents of a recording, in order."""
    trace = timeline.trace
    given_back = np.where(np.isin(trace.action, GIVEN_BACK), trace.size, 0)
    found = [
        Incident(event, "oom", int(trace.size[event])) for event in np.flatnonzero(trace.action == Action.OOM).tolist()
    ]
    for release in releases_of(timeline):
        size = int(given_back[release.event : release.end].sum())
        found.append(Incident(release.event, "retry" if release.refused else "flush", size))
    return tuple(sorted(found))
