"""What pictures of a snapshot show beyond its tables: the timeline in bins, and the map of segments.

Tables need no events, so that explaining a file without a picture computes none of this.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from oomscope.snapshot.accounting.attribution import by_stack, moments_shown
from oomscope.snapshot.accounting.stack_tree import LiveStacks
from oomscope.snapshot.explain.analysis import Analysis
from oomscope.snapshot.explain.areas import Area
from oomscope.snapshot.explain.composition import Describe
from oomscope.snapshot.explain.curves import ORDER, Bins, bins_of
from oomscope.snapshot.explain.states import Blocks, States, states_of, summed
from oomscope.snapshot.replay.releases import Incident, incidents_of
from oomscope.snapshot.replay.segment_map import SegmentMap
from oomscope.snapshot.sites import Site
from oomscope.snapshot.trace import DEFAULT_POOL, Segment


@dataclass(frozen=True, kw_only=True)
class FloorPlan:
    """All segments at one event, those with most unused bytes first."""

    event: int
    segments: tuple[Segment, ...]
    made: dict[int, tuple[Site, str]]
    """The line that made each active block, and its category, by the block's address."""

    @property
    def reserved_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.total_size for segment in self.segments)


def floor_plan(here: SegmentMap, describe: Describe) -> FloorPlan | None:
    """Return the plan of ``here``; None where the segments are not known."""
    if not here.knows_all_blocks:
        return None
    order = sorted(here.segments, key=lambda each: (each.active_size - each.total_size, -each.total_size, each.address))
    made = {address: describe(row) for address, row in here.row_at.items()}
    return FloorPlan(event=here.event, segments=tuple(order), made=made)


LABELS: Final = tuple(category.label for category in ORDER)
MOST_BINS = 131_072
"""Most bins in a page; a trace with no more events is there event by event."""


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """The pictures of one device."""

    bins: Bins
    plan: FloorPlan | None
    """Segments at the failed allocation, else at the peak; None where they are unknown."""
    live: LiveStacks
    """Live blocks at the failed allocation if there is one, at the peak and at the end."""
    states: States | None = None
    """The segments at other moments; None where they are unknown."""
    incidents: tuple[Incident, ...] = ()
    failed_event: int | None = None
    """Event of the failed allocation; None where none failed, or it was not recorded."""


def draw(analysis: Analysis, most_bins: int = MOST_BINS) -> Drawing:
    """Return the pictures of a device: as many events a bin as lead to at most ``most_bins``."""
    timeline, evidence, here = analysis.timeline, analysis.evidence, analysis.of_interest
    bins = bins_of(timeline, evidence, max(1, -(-len(timeline.trace) // most_bins)))
    plan, incidents = floor_plan(here, analysis.describe), incidents_of(timeline)
    states = None
    if plan is not None and len(bins):
        settings = analysis.recording.rules.settings()
        kept = (each.event for each in incidents)
        states = states_of(
            *(timeline, here, bins),
            evidence=evidence,
            describe=analysis.describe,
            settings=settings,
            extra=kept,
        )
    failed = analysis.failure_event
    failed = None if failed is None or failed < 0 else failed
    live = by_stack(timeline, moments_shown(timeline, failed_event=analysis.failure_event), evidence.category)
    return Drawing(bins=bins, plan=plan, live=live, states=states, incidents=incidents, failed_event=failed)


def still(plan: FloorPlan) -> States:
    """Return the one moment that is known where no other is."""
    placed = [
        (at, segment, block, *plan.made[block.address])
        for at, segment in enumerate(plan.segments)
        for block in segment.blocks
        if block.state != "inactive"
    ]
    rows = [
        (
            *(at, block.address - segment.address, block.size, block.requested_size),
            *(0, int(block.state == "active_allocated"), 1, LABELS.index(category), row),
        )
        for row, (at, segment, block, _, category) in enumerate(placed)
    ]
    columns = np.array(rows, dtype=np.int64).reshape(-1, len(fields(Blocks))).T
    areas = [
        Area(
            *(each.address, each.total_size, 0, 1, each.stream, each.segment_type),
            is_expandable=False,
            is_private=each.pool_id != DEFAULT_POOL,
        )
        for each in plan.segments
    ]
    return summed(
        np.array([plan.event]),
        0,
        areas=areas,
        pages=np.zeros((0, 5), dtype=np.int64),
        blocks=Blocks(**{each.name: column for each, column in zip(fields(Blocks), columns, strict=True)}),
        site_of=lambda row: placed[row][3],
    )
