"""What pictures of a snapshot show beyond its tables: the timeline in bins, and the map of segments.

Tables need no events, so that explaining a file without a picture computes none of this.
"""

from __future__ import annotations

from dataclasses import dataclass

from oomscope.snapshot.attribution import by_stack, moments_shown
from oomscope.snapshot.builder import DEFAULT_POOL
from oomscope.snapshot.explain.analysis import Analysis
from oomscope.snapshot.explain.composition import Describe
from oomscope.snapshot.explain.curves import Bins, bins_of
from oomscope.snapshot.replay.segment_map import SegmentMap
from oomscope.snapshot.sites import Site
from oomscope.snapshot.stack_tree import LiveStacks
from oomscope.snapshot.trace import Segment


@dataclass(frozen=True, kw_only=True)
class PlacedBlock:
    """A block, or a free gap where ``category`` is empty."""

    address: int
    size: int
    """What it occupies."""
    requested: int
    """0 for a gap."""
    category: str
    is_pending: bool
    """Given up by the program, kept for a stream."""
    site: Site | None


@dataclass(frozen=True, kw_only=True)
class PlacedSegment:
    """A segment; its blocks fill it from end to end."""

    address: int
    size: int
    unused: int
    """In gaps."""
    stream: int
    segment_type: str
    is_private: bool
    blocks: tuple[PlacedBlock, ...]


@dataclass(frozen=True, kw_only=True)
class FloorPlan:
    """All segments at one event, those with most unused bytes first."""

    event: int
    is_exact: bool
    """Block sizes are the file's own."""
    segments: tuple[PlacedSegment, ...]

    @property
    def reserved_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self.segments)


def floor_plan(here: SegmentMap, describe: Describe) -> FloorPlan | None:
    """Return the plan of ``here``; None where the segments are not known."""
    if not here.knows_all_blocks:
        return None
    placed = [_placed(segment, here, describe) for segment in here.segments]
    placed.sort(key=lambda segment: (-segment.unused, -segment.size, segment.address))
    return FloorPlan(event=here.event, is_exact=here.is_exact, segments=tuple(placed))


def _placed(segment: Segment, here: SegmentMap, describe: Describe) -> PlacedSegment:
    blocks = []
    for block in segment.blocks:
        is_gap = block.state == "inactive"
        site, category = (None, "") if is_gap else describe(here.row_at[block.address])
        placed = PlacedBlock(
            address=block.address,
            size=block.size,
            requested=0 if is_gap else block.requested_size,
            category=category,
            is_pending=block.state == "active_pending_free",
            site=site,
        )
        blocks.append(placed)
    return PlacedSegment(
        address=segment.address,
        size=segment.total_size,
        unused=sum(block.size for block in blocks if not block.category),
        stream=segment.stream,
        segment_type=segment.segment_type,
        is_private=segment.pool_id != DEFAULT_POOL,
        blocks=tuple(blocks),
    )


MOST_BINS = 131_072
"""Bins that a reader's computer gets at most; a trace with as many events is there event by event."""


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """The pictures of one device."""

    bins: Bins
    plan: FloorPlan | None
    """At the failed allocation, else at the peak; None where the segments of then are unknown."""
    live: LiveStacks
    """At the failed allocation if there is one, at the peak and at the end."""


def draw(analysis: Analysis, most_bins: int = MOST_BINS) -> Drawing:
    """Return the pictures of a device: as many events a bin as lead to at most ``most_bins``."""
    timeline, here = analysis.timeline, analysis.of_interest
    moments = moments_shown(timeline, failed_event=analysis.failure_event)
    return Drawing(
        bins=bins_of(timeline, analysis.evidence, max(1, -(-len(timeline.trace) // most_bins))),
        plan=floor_plan(here, analysis.describe),
        live=by_stack(timeline, moments, analysis.evidence.category),
    )
