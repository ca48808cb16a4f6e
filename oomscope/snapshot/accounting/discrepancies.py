"""Why the end of a walk through the events differs from the segments that the file holds.

In a file that torch wrote in one go nothing differs. Where something does, the segments are of another moment than the
events, or events were lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from oomscope.document import Document
from oomscope.snapshot.accounting.lifetimes import Lifetimes, active_blocks
from oomscope.snapshot.trace import Segment, Trace
from oomscope.units import format_size


class Cause(StrEnum):
    """What is behind a discrepancy."""

    FREE_NOT_RECORDED = "free_not_recorded"
    """The events leave a block alive that the segments hold as free, or do not hold at all."""
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
    Cause.ALLOC_NOT_RECORDED: ("block", "of the segments that came after the last event, or unseen; in no curve"),
    Cause.SIZES_DIFFER: ("block", "of another size in the segments than in the events"),
    Cause.EVENTS_CONTRADICT: ("event", "freeing what is not allocated, or allocating what is"),
    Cause.COUNTERS_DIFFER: ("segment", "whose counters are not the sums over its blocks"),
}
"""What is counted, and what is wrong with it."""


@dataclass(frozen=True, kw_only=True)
class Discrepancy(Document):
    """Blocks that differ for one cause."""

    cause: Cause
    blocks: int
    """Blocks, events (``events_contradict``) or segments (``counters_differ``)."""
    bytes: int
    """Requested bytes concerned."""
    difference_bytes: int
    """Part of walked minus segment bytes that this cause explains; the parts sum to all of it."""

    def __str__(self) -> str:
        """Return one line."""
        noun, what = _MEANING[self.cause]
        return f"{self.blocks:,} {noun}{'' if self.blocks == 1 else 's'} {what}: {format_size(self.bytes)}"


def discrepancies(trace: Trace, table: Lifetimes, segments: Sequence[Segment]) -> tuple[Discrepancy, ...]:
    """Return why the blocks that the events leave alive are not those of ``segments``."""
    return tuple(
        Discrepancy(cause=cause, blocks=count, bytes=size, difference_bytes=difference)
        for cause, count, size, difference in _found(trace, table, segments)
        if count
    )


def _found(trace: Trace, table: Lifetimes, segments: Sequence[Segment]) -> Iterator[tuple[Cause, int, int, int]]:
    """Yield how many blocks, events or segments each cause concerns, how many bytes, and how much it explains."""
    held = np.array([block.requested_size for _, block in active_blocks(segments)], dtype=np.int64)
    alive = (table.completed == table.end) & (table.segment_block < 0)
    left_over = int(table.size[alive].sum())
    yield Cause.FREE_NOT_RECORDED, int(alive.sum()), left_over, left_over
    rows = np.flatnonzero(table.segment_block >= 0)
    excess = table.size[rows] - held[table.segment_block[rows]]
    yield Cause.SIZES_DIFFER, int((excess != 0).sum()), int(np.abs(excess).sum()), int(excess.sum())
    later = int(held[table.later].sum())
    yield Cause.ALLOC_NOT_RECORDED, len(table.later), later, -later
    contradicting = table.inconsistent_events
    yield Cause.EVENTS_CONTRADICT, len(contradicting), int(trace.size[contradicting].sum()), 0
    edited = [each.requested_counter - each.requested_size for each in segments if each.requested_counter != -1]
    edited = [abs(difference) for difference in edited if difference]
    yield Cause.COUNTERS_DIFFER, len(edited), sum(edited), 0
