"""The largest block that the caching allocator held at one moment and nobody used: what a request found at best."""

from __future__ import annotations

from oomscope.errors import AllocatorConfError
from oomscope.snapshot.replaying.fixes import Rules
from oomscope.snapshot.replaying.segment_map import segments_after
from oomscope.snapshot.timeline import Timeline


def largest_free_block(timeline: Timeline, event: int, rules: Rules) -> int | None:
    """Return the bytes of the largest unused block right after ``event``, 0 for none.

    Args:
        timeline: a run, with the segments as they stood at its end.
        event: index of the event.
        rules: whose allocator it was.

    Returns:
        None where segments and blocks at that moment cannot be known.
    """
    try:
        here = segments_after(timeline, event, rules.settings())
    except AllocatorConfError:  # settings that this emulator has no rules for
        return None
    if not here.is_known:
        return None
    blocks = (block for segment in here.segments for block in segment.blocks)
    return max((block.size for block in blocks if block.state == "inactive"), default=0)
