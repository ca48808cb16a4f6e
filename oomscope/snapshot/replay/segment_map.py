"""The allocator's segments and blocks in the middle of a recording, which the file itself only has for the end.

The state after an event is the state before the rest of the trace, and that is recovered by undoing the rest. Which
addresses are live is exact; the size of a block that was freed later follows from its request by the rounding rules.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from oomscope.allocator import AllocatorSettings
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.replay.initial_state import recover
from oomscope.snapshot.replay.replay import segments_of
from oomscope.snapshot.trace import NEUTRAL, Block, Segment, Trace


@dataclass(frozen=True, kw_only=True)
class SegmentMap:
    """Segments and blocks right after one event."""

    event: int
    segments: tuple[Segment, ...]
    """The segments; empty where they cannot be known."""
    row_at: dict[int, int]
    """The row of the lifetimes behind each active block, by its address."""
    is_known: bool
    """Whether the segments are known; else ``doubts`` says why not."""
    is_exact: bool
    """Whether the file has exactly these segments; else block sizes are recovered."""
    doubts: tuple[str, ...] = ()
    """Assumptions, for people."""

    @property
    def knows_all_blocks(self) -> bool:
        """Whether the trace accounts for every active block; a file that contradicts itself may have others."""
        active = (block for segment in self.segments for block in segment.blocks if block.state != "inactive")
        return self.is_known and all(block.address in self.row_at for block in active)

    @property
    def active_bytes(self) -> int:
        """Rounded bytes of blocks held by the program or pending on a stream."""
        return sum(segment.active_size for segment in self.segments)

    @property
    def allocated_bytes(self) -> int:
        """Rounded bytes of blocks that the program holds."""
        return sum(segment.allocated_size for segment in self.segments)


def segments_after(timeline: Timeline, event: int, settings: AllocatorSettings) -> SegmentMap:
    """Return segments and blocks right after ``event``, -1 being before the first; recorded settings round sizes."""
    table = timeline.lifetimes
    active = np.flatnonzero((table.born <= event) & (table.completed > event))
    row_at = dict(zip(table.address[active].tolist(), active.tolist(), strict=True))
    if timeline.segments is not None and np.isin(timeline.trace.action[event + 1 :], NEUTRAL).all():
        return SegmentMap(event=event, segments=timeline.segments, row_at=row_at, is_known=True, is_exact=True)
    rest = Timeline(part_of(timeline.trace, slice(event + 1, None)), timeline.segments)
    state = recover(rest, settings)
    if state.held is None or state.held.ids.keys() != row_at.keys():
        doubts = state.doubts or ("the events before and after contradict each other on which blocks were live",)
        return SegmentMap(event=event, segments=(), row_at=row_at, is_known=False, is_exact=False, doubts=doubts)
    pending = {int(table.address[row]) for row in table.pending_at(event)}
    segments = segments_of(list(state.held.segments), timeline.trace.device, pool_ids=state.pool_ids)
    segments = tuple(
        replace(segment, blocks=tuple(_as_of_then(block, pending) for block in segment.blocks)) for segment in segments
    )
    return SegmentMap(event=event, segments=segments, row_at=row_at, is_known=True, is_exact=False, doubts=state.doubts)


def _as_of_then(block: Block, pending: set[int]) -> Block:
    return replace(block, state="active_pending_free") if block.address in pending else block


def part_of(trace: Trace, chosen: slice) -> Trace:
    """Return some consecutive events of a trace."""
    columns = {field.name: getattr(trace, field.name) for field in fields(trace)}
    part: dict[str, Any] = {name: column[chosen] for name, column in columns.items() if isinstance(column, np.ndarray)}
    return replace(trace, **part)
