"""The memory that the allocator held from the driver when a recording began: the final one with all events undone.

From the last event to the first, what was taken goes and what was given back returns: segments of cudaMalloc, and
mapped pages of expandable segments.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from oomscope.allocator.constants import SMALL_SEGMENT, SMALL_SIZE
from oomscope.snapshot.address_ranges import AddressRanges
from oomscope.snapshot.timeline import Timeline
from oomscope.snapshot.trace import Action

SEGMENT_ACTIONS = (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE, Action.SEGMENT_MAP, Action.SEGMENT_UNMAP)
"""What the allocator takes from the driver and gives back to it."""


class Owner(NamedTuple):
    """Whose memory a range is; no two owners share a segment or a reservation."""

    stream: int
    segment_type: str
    is_expandable: bool


class InitialMemory:
    """Segments and mapped pages before the first event.

    Args:
        timeline: a trace, with the segments at its end.
    """

    def __init__(self, timeline: Timeline) -> None:
        self.segments: dict[int, tuple[int, Owner]] = {}
        """Size and owner of each segment of cudaMalloc, by address."""
        self.mapped: dict[Owner, AddressRanges] = {}
        """Pages of expandable segments."""
        self.bases: dict[Owner, int] = {}
        """Where each owner's reservation begins, as far as is known: the lowest address ever seen mapped."""
        self.contradictions = 0
        """Events that the segments at the end, or other events, belie."""
        self.first_mapped: list[Owner] = []
        """Whose pages the events map, in the order in which they first do."""
        self._trace = timeline.trace
        for segment in timeline.segments or ():
            owner = Owner(segment.stream, segment.segment_type, segment.is_expandable)
            if segment.is_expandable:
                self._map(owner, segment.address, segment.address + segment.total_size)
            else:
                self.segments[segment.address] = segment.total_size, owner
        self._undo()

    def _undo(self) -> None:
        owners = self._owners_of_pages()
        for event in np.flatnonzero(np.isin(self._trace.action, SEGMENT_ACTIONS))[::-1].tolist():
            action, start, end = int(self._trace.action[event]), *self._range(event)
            if action == Action.SEGMENT_ALLOC:
                self.contradictions += self.segments.pop(start, (0, None))[0] != end - start
            elif action == Action.SEGMENT_FREE:
                self.contradictions += start in self.segments
                # The large pool takes no segments as small as those of the small pool.
                segment_type = "small" if end - start == SMALL_SEGMENT else "large"
                owner = Owner(int(self._trace.stream[event]), segment_type, is_expandable=False)
                self.segments[start] = end - start, owner
            elif action == Action.SEGMENT_MAP:
                self.contradictions += not self.mapped[owners[event]].remove(start, end)
            else:
                self.contradictions += not self._map(owners[event], start, end)

    def _range(self, event: int) -> tuple[int, int]:
        start = int(self._trace.address[event])
        return start, start + int(self._trace.size[event])

    def _map(self, owner: Owner, start: int, end: int) -> bool:
        """Return whether nothing of the range was there."""
        self.bases[owner] = min(start, self.bases.get(owner, start))
        return self.mapped.setdefault(owner, AddressRanges()).add(start, end)

    def _owners_of_pages(self) -> dict[int, Owner]:
        """Return whose pages each event maps (those of the request that it serves) or unmaps (those nearest by)."""
        trace = self._trace
        known = [(*ends, owner) for owner, ranges in self.mapped.items() for ends in ranges]
        requests = np.flatnonzero((trace.action == Action.ALLOC) | (trace.action == Action.OOM))
        owners: dict[int, Owner] = {}
        for event in np.flatnonzero(trace.action == Action.SEGMENT_MAP).tolist():
            place = int(np.searchsorted(requests, event))
            is_small = place < len(requests) and int(trace.size[requests[place]]) <= SMALL_SIZE
            owner = Owner(int(trace.stream[event]), "small" if is_small else "large", is_expandable=True)
            start, end = self._range(event)
            known.append((start, end, owner))
            self.bases[owner] = min(start, self.bases.get(owner, start))
            self.mapped.setdefault(owner, AddressRanges())
            if owner not in self.first_mapped:
                self.first_mapped.append(owner)
            owners[event] = owner
        for event in np.flatnonzero(trace.action == Action.SEGMENT_UNMAP).tolist():
            owners[event] = _nearest(known, self._range(event)[0], int(trace.stream[event]))
        return owners


def _nearest(known: list[tuple[int, int, Owner]], address: int, stream: int) -> Owner:
    """Return the owner of the pages of ``stream`` that are nearest to ``address``."""
    own = [row for row in known if row[2].stream == stream]
    if not own:
        return Owner(stream, "large", is_expandable=True)
    return min(own, key=lambda row: max(row[0] - address, address - row[1], 0))[2]
