"""The timeline that a report draws: few points, in each of which the slice of the recording stands at its highest."""

from __future__ import annotations

import numpy as np

from oomscope.snapshot.explain.explanation import Curves
from oomscope.snapshot.infer.categorise import Evidence
from oomscope.snapshot.lifetimes import Indices
from oomscope.snapshot.timeline import Timeline
from oomscope.snapshot.trace import Category

POINTS = 200


def curves_of(timeline: Timeline, evidence: Evidence, points: int = POINTS) -> Curves:
    """Return requested bytes, in all and by category, and reserved bytes at up to ``points`` events.

    The event of a slice is the one with most requested bytes; a slice's own largest reserved bytes may be of another.
    """
    events = _highest(timeline.requested, points)
    categories = {
        Category(number).label: tuple(requested_of(timeline, evidence.category == number)[events].tolist())
        for number in np.unique(evidence.category).tolist()
    }
    return Curves(
        events=tuple(events.tolist()),
        requested=tuple(timeline.requested[events].tolist()),
        reserved=tuple(timeline.reserved[events].tolist()),
        categories={name: curve for name, curve in categories.items() if any(curve)},
    )


def _highest(curve: Indices, points: int) -> Indices:
    """Return the first event of the largest value in each of ``points`` slices."""
    edges = np.unique(np.linspace(0, len(curve), num=min(points, len(curve)) + 1).astype(np.int64))
    slices = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    return np.array([low + int(curve[low:high].argmax()) for low, high in slices], dtype=np.int64)


def requested_of(timeline: Timeline, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Indices:
    """Return the requested bytes of some blocks after each event."""
    table = timeline.lifetimes
    size, end = table.size[chosen], table.end + 1
    born = np.minimum(table.born[chosen] + 1, end)
    gone = np.clip(table.completed[chosen] + 1, 0, end)
    change = np.zeros(end + 1, dtype=np.int64)
    np.add.at(change, born, size)
    np.subtract.at(change, gone, size)
    return np.cumsum(change)[1:end]
