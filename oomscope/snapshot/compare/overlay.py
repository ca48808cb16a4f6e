"""Two curves over one axis, so that they can be laid over each other without a ruler.

Where both traces know their iterations, every iteration is as wide as the other side's; elsewhere the axis is the
share of the events. Each point is the maximum of its stretch, so that no peak is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oomscope.snapshot.timeline import Curve, Timeline
from oomscope.snapshot.trace import Trace

POINTS: Final = 240
"""Points of a curve; wide enough for a page."""


class Stretch(NamedTuple):
    """A part of the axis."""

    name: str
    start: float
    """0 to 1."""


@dataclass(frozen=True, kw_only=True)
class Overlay:
    """Both curves of requested bytes, equally long."""

    aligned_by: Literal["iteration", "event"]
    before: tuple[int, ...]
    after: tuple[int, ...]
    stretches: tuple[Stretch, ...] = ()
    """The iterations, where they are known."""

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "aligned_by": self.aligned_by,
            "before": list(self.before),
            "after": list(self.after),
            "stretches": [stretch._asdict() for stretch in self.stretches],
        }


def overlay(before: Timeline, after: Timeline, points: int = POINTS) -> Overlay:
    """Return the requested bytes of both sides over one axis; a side without events is empty."""
    names = _common_iterations(before.trace, after.trace)
    if names is None:
        whole = [np.zeros(len(side.trace), dtype=np.int64) for side in (before, after)]
        old, new = (sampled(side.requested, part, 1, points) for side, part in zip((before, after), whole, strict=True))
        return Overlay(aligned_by="event", before=old, after=new)
    each = max(1, points // len(names))
    old, new = (sampled(side.requested, _parts(side.trace, names), len(names), each) for side in (before, after))
    stretches = [
        Stretch("before the first iteration" if name < 0 else f"iteration {name}", index / len(names))
        for index, name in enumerate(names)
    ]
    return Overlay(aligned_by="iteration", before=old, after=new, stretches=tuple(stretches))


def sampled(curve: Curve, part: NDArray[np.int64], parts: int, points: int) -> tuple[int, ...]:
    """Return ``points`` maxima of each part of ``curve``; a point without an event repeats the one before it.

    Args:
        curve: bytes right after each event.
        part: for each event the part that it belongs to, ascending.
        parts: how many there are.
        points: points a part.
    """
    if not len(curve):
        return ()
    first = np.searchsorted(part, np.arange(parts))
    length = np.maximum(1, np.searchsorted(part, np.arange(parts), side="right") - first)
    slot = part * points + (np.arange(len(curve)) - first[part]) * points // length[part]
    highest = np.full(parts * points, -1, dtype=np.int64)
    np.maximum.at(highest, slot, curve)
    seen = np.maximum.accumulate(np.where(highest >= 0, np.arange(len(highest)), 0))
    return tuple(np.maximum(highest[seen], 0).tolist())


def _common_iterations(before: Trace, after: Trace) -> list[int] | None:
    """Return the iterations that either side has (-1: what came before the first), where both know theirs."""
    names = []
    for trace in (before, after):
        own = iterations_of(trace)
        if not len(own) or (np.diff(own) < 0).any() or own[-1] < 0:
            return None
        names += np.unique(own).tolist()
    return sorted(set(names))


def iterations_of(trace: Trace) -> NDArray[np.int64]:
    """Return the iteration of each event (-1 before the first); events that do not know theirs go on with the last."""
    own = np.array([moment.iteration for moment in trace.moments], dtype=np.int64)[trace.moment_id]
    return np.maximum.accumulate(own) if len(own) else own


def _parts(trace: Trace, names: list[int]) -> NDArray[np.int64]:
    return np.searchsorted(np.array(names), iterations_of(trace))
