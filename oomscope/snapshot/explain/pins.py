"""What pins segments: memory that the allocator holds, that nobody uses, and that it cannot give back or merge.

A segment goes back to the driver only when all of it is free, so one long-lived block keeps the rest from every request
that does not fit beside it (pytorch#35901). The unused bytes of a segment are put down to the line whose block stays
in it longest.
"""

from __future__ import annotations

from dataclasses import dataclass

from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.explain.composition import Describe
from oomscope.snapshot.replay.segment_map import SegmentMap
from oomscope.snapshot.sites import Site


@dataclass(frozen=True, kw_only=True)
class Pin:
    """Blocks of one line and category in a segment."""

    site: Site
    category: str
    bytes: int
    """Requested bytes."""
    count: int


@dataclass(frozen=True, kw_only=True)
class PinnedSegment:
    """A segment that live blocks keep from being given back."""

    address: int
    total_bytes: int
    unused_bytes: int
    """Bytes in blocks that are not used."""
    stream: int
    segment_type: str
    is_expandable: bool
    pins: tuple[Pin, ...]
    """Pinning blocks, largest first."""


@dataclass(frozen=True, kw_only=True)
class PinningLine:
    """A line of code, and the segments in which its block stays longest."""

    site: Site
    category: str
    segments: int
    held_bytes: int
    """Requested bytes of its blocks in these segments."""
    unused_bytes: int
    """Unused bytes of these segments."""


@dataclass(frozen=True, kw_only=True)
class Pins:
    """The unused part of reserved memory at one event."""

    event: int
    pinned_bytes: int
    """Unused bytes in segments with a live block."""
    idle_bytes: int
    """Bytes of segments without a live block: ``torch.cuda.empty_cache`` gives them back."""
    rounding_bytes: int
    """Bytes of blocks in use beyond what was requested."""
    segments: tuple[PinnedSegment, ...]
    """Pinned segments with unused bytes, most first."""
    lines: tuple[PinningLine, ...]
    """Pinning lines, most first; their ``unused_bytes`` sum to ``pinned_bytes``."""


def pins_of(timeline: Timeline, here: SegmentMap, describe: Describe) -> Pins:
    """Return what pins the segments of ``here``."""
    table = timeline.lifetimes
    pinned, idle, rounding = [], 0, 0
    lines: dict[tuple[Site, str], list[int]] = {}
    for segment in here.segments:
        used = [block for block in segment.blocks if block.state != "inactive"]
        rounding += sum(block.size - block.requested_size for block in used)
        unused = segment.total_size - sum(block.size for block in used)
        if not used:
            idle += unused
        elif unused:
            rows_of: dict[tuple[Site, str], list[int]] = {}
            for block in used:
                row = here.row_at[block.address]
                rows_of.setdefault(describe(row), []).append(row)
            held = {key: int(table.size[rows].sum()) for key, rows in rows_of.items()}
            in_segment = [row for rows in rows_of.values() for row in rows]
            last = max(in_segment, key=lambda row: (table.freed[row], table.size[row]))
            total = lines.setdefault(describe(last), [0, 0, 0])
            for index, amount in enumerate((1, held[describe(last)], unused)):
                total[index] += amount
            pins = [
                Pin(site=key[0], category=key[1], bytes=held[key], count=len(rows)) for key, rows in rows_of.items()
            ]
            pinned.append(
                PinnedSegment(
                    address=segment.address,
                    total_bytes=segment.total_size,
                    unused_bytes=unused,
                    stream=segment.stream,
                    segment_type=segment.segment_type,
                    is_expandable=segment.is_expandable,
                    pins=tuple(sorted(pins, key=lambda pin: -pin.bytes)),
                )
            )
    found = (
        PinningLine(site=site, category=category, segments=count, held_bytes=size, unused_bytes=unused)
        for (site, category), (count, size, unused) in lines.items()
    )
    return Pins(
        event=here.event,
        pinned_bytes=sum(segment.unused_bytes for segment in pinned),
        idle_bytes=idle,
        rounding_bytes=rounding,
        segments=tuple(sorted(pinned, key=lambda segment: -segment.unused_bytes)),
        lines=tuple(sorted(found, key=lambda line: -line.unused_bytes)),
    )
