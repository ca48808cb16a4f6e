"""What pictures of a snapshot show beyond its tables: the timeline in bins, and the map of segments.

Tables need no events, so that explaining a file without a picture computes none of this.
"""

from __future__ import annotations

from dataclasses import dataclass

from oomscope.snapshot.explain.analysis import Analysis
from oomscope.snapshot.explain.bins import Bins, bins_of
from oomscope.snapshot.explain.floor_plan import FloorPlan, floor_plan

MOST_BINS = 131_072
"""Bins that a reader's computer gets at most; a trace with as many events is there event by event."""


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """The pictures of one device."""

    bins: Bins
    plan: FloorPlan | None
    """At the failed allocation, else at the peak; None where the segments of then are unknown."""


def draw(analysis: Analysis, most_bins: int = MOST_BINS) -> Drawing:
    """Return the pictures of a device: as many events a bin as lead to at most ``most_bins``."""
    timeline = analysis.timeline
    here = analysis.at_failure or analysis.at_peak
    return Drawing(
        bins=bins_of(timeline, analysis.evidence, max(1, -(-len(timeline.trace) // most_bins))),
        plan=floor_plan(here, analysis.describe),
    )
