"""Why the end of a walk through the events differs from the segments that the file holds, block by block.

In a file that torch wrote in one go nothing differs. Where something does, the segments are of another moment than the
events, or events were lost; each row says how many bytes, and which event shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np

from oomscope.snapshot.lifetimes import Indices, Lifetimes, active_blocks, last_use
from oomscope.snapshot.trace import Segment, Trace
from oomscope.units import format_size


class Cause(StrEnum):
    """What is behind a discrepancy."""

    FREE_NOT_RECORDED = "free_not_recorded"
    """The events leave a block alive that the segments hold as free, or under another block."""
    SEGMENT_NOT_IN_FILE = "segment_not_in_file"
    """The events leave a block alive where the file has no segment."""
    ALLOC_NOT_RECORDED = "alloc_not_recorded"
    """The segments hold a block that no event allocates, though events show other use of its place."""
    SIZES_DIFFER = "sizes_differ"
    """An event and a segment's block state different requested sizes for the same block."""
    EVENTS_CONTRADICT = "events_contradict"
    """Events say a free of what is not allocated, or an alloc of what is."""
    COUNTERS_DIFFER = "counters_differ"
    """The segments' own counters are not the sums of their blocks: the file was edited."""


_MEANING: Final = {
    Cause.FREE_NOT_RECORDED: ("block", "alive by the events, free in the segments (freed later, or unseen)"),
    Cause.SEGMENT_NOT_IN_FILE: ("block", "alive by the events, in no segment of the file"),
    Cause.ALLOC_NOT_RECORDED: ("block", "of the segments that came after the last event, or unseen; in no curve"),
    Cause.SIZES_DIFFER: ("block", "of another size in the segments than in the events"),
    Cause.EVENTS_CONTRADICT: ("event", "freeing what is not allocated, or allocating what is"),
    Cause.COUNTERS_DIFFER: ("segment", "whose counters are not the sums over its blocks"),
}
"""What is counted, and what is the matter with it."""


@dataclass(frozen=True, kw_only=True)
class Discrepancy:
    """Blocks that differ for one cause."""

    cause: Cause
    blocks: int
    """Blocks, events (``events_contradict``) or segments (``counters_differ``)."""
    bytes: int
    """Requested bytes concerned."""
    difference_bytes: int
    """Part of walked minus segment bytes that this explains; the parts sum to all of it."""
    event: int = -1
    """The first event that shows it; -1 where none does."""

    def __str__(self) -> str:
        """Return one line."""
        where = f", first at event {self.event}" if self.event >= 0 else ""
        noun, what = _MEANING[self.cause]
        counted = f"{self.blocks:,} {noun}{'' if self.blocks == 1 else 's'}"
        return f"{counted} {what}: {format_size(self.bytes)}{where}"

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self) | {"cause": str(self.cause)}


def discrepancies(trace: Trace, table: Lifetimes, segments: Sequence[Segment]) -> tuple[Discrepancy, ...]:
    """Return why the blocks that the events leave alive are not those of ``segments``.

    Args:
        trace: one device's events.
        table: what :func:`~oomscope.snapshot.lifetimes.pair` made of them and of the segments.
        segments: the device's segments.
    """
    return tuple(
        row
        for row in (
            *_left_over(table, segments),
            _sizes(table, segments),
            _later(trace, table, segments),
            _contradictions(trace, table),
            _counters(segments),
        )
        if row.blocks
    )


def _left_over(table: Lifetimes, segments: Sequence[Segment]) -> tuple[Discrepancy, Discrepancy]:
    """Return the blocks that end in no active block, by whether the file has the segment."""
    rows = np.flatnonzero((table.completed == table.end) & (table.segment_block < 0))
    order = sorted(segments, key=lambda segment: segment.address)
    starts = np.array([segment.address for segment in order], dtype=np.uint64)
    ends = np.array([segment.address + segment.total_size for segment in order], dtype=np.uint64)
    near = np.searchsorted(starts, table.address[rows], side="right") - 1
    inside = near >= 0
    inside[inside] = table.address[rows[inside]] < ends[near[inside]]
    return (
        _alive(table, rows[inside], Cause.FREE_NOT_RECORDED),
        _alive(table, rows[~inside], Cause.SEGMENT_NOT_IN_FILE),
    )


def _alive(table: Lifetimes, rows: Indices, cause: Cause) -> Discrepancy:
    total = int(table.size[rows].sum())
    return Discrepancy(
        cause=cause,
        blocks=len(rows),
        bytes=total,
        difference_bytes=total,
        event=int(table.born[rows].min()) if len(rows) else -1,
    )


def _sizes(table: Lifetimes, segments: Sequence[Segment]) -> Discrepancy:
    blocks = active_blocks(segments)
    held = np.array([block.requested_size for block in blocks], dtype=np.int64)
    rows = np.flatnonzero(table.segment_block >= 0)
    excess = table.size[rows] - held[table.segment_block[rows]]
    differing = excess != 0
    return Discrepancy(
        cause=Cause.SIZES_DIFFER,
        blocks=int(differing.sum()),
        bytes=int(np.abs(excess).sum()),
        difference_bytes=int(excess.sum()),
        event=int(table.born[rows[differing]].min()) if differing.any() else -1,
    )


def _later(trace: Trace, table: Lifetimes, segments: Sequence[Segment]) -> Discrepancy:
    active = active_blocks(segments)
    blocks = [active[position] for position in table.later.tolist()]
    address = np.array([block.address for block in blocks], dtype=np.uint64)
    size = np.array([block.requested_size for block in blocks], dtype=np.int64)
    return Discrepancy(
        cause=Cause.ALLOC_NOT_RECORDED,
        blocks=len(blocks),
        bytes=int(size.sum()),
        difference_bytes=-int(size.sum()),
        event=int(last_use(trace, address, np.maximum(size, 1)).min()) if blocks else -1,
    )


def _contradictions(trace: Trace, table: Lifetimes) -> Discrepancy:
    events = table.inconsistent_events
    return Discrepancy(
        cause=Cause.EVENTS_CONTRADICT,
        blocks=len(events),
        bytes=int(trace.size[events].sum()),
        difference_bytes=0,
        event=int(events[0]) if len(events) else -1,
    )


def _counters(segments: Sequence[Segment]) -> Discrepancy:
    differing = [each for each in segments if each.requested_counter not in {-1, each.requested_size}]
    return Discrepancy(
        cause=Cause.COUNTERS_DIFFER,
        blocks=len(differing),
        bytes=sum(abs(each.requested_counter - each.requested_size) for each in differing),
        difference_bytes=0,
    )
