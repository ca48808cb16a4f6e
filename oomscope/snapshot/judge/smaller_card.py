"""Would the recorded job have run out of memory on another card? Its own allocations are replayed there to see.

Where one fails, the job is judged as if its recording had ended at that allocation. One that failed when recorded is
asked for again: on a larger card it may be served.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from oomscope.snapshot.event_fields import FREE_UNKNOWN
from oomscope.snapshot.judge.verdict import FailedRequest, failure_of
from oomscope.snapshot.replay.recording import Recording
from oomscope.snapshot.replay.replay import Device, Replay, replay
from oomscope.snapshot.replay.requests import Last, requests_of
from oomscope.snapshot.replay.segment_map import part_of, segments_after
from oomscope.snapshot.timeline import Timeline
from oomscope.snapshot.trace import Action, Segment, Trace


@dataclass(frozen=True, kw_only=True)
class CutShort:
    """A recording that ends at the allocation that another card refuses."""

    trace: Trace
    """The events up to the failure, which is an ``oom`` event in place of the allocation."""
    segments: tuple[Segment, ...]
    """The recorded segments right before it."""
    failure: FailedRequest
    """With the segments as they are on that card."""


def cut_short_on(device: Device, timeline: Timeline, recording: Recording) -> CutShort | None:
    """Return the recording up to its failure on ``device``.

    None where nothing fails there, where not even what was alive before the recording fits, and where the segments of
    that moment cannot be recovered.
    """
    settings = recording.rules.settings()
    outcome = _replayed(device, timeline, recording)
    event = outcome.failed_event
    if event is None or event < 0:
        return None
    before = segments_after(timeline, event - 1, settings)
    if not before.is_known:
        return None
    trace = part_of(timeline.trace, slice(0, event + 1))
    action, address = trace.action.copy(), trace.address.copy()
    action[event], address[event] = Action.OOM, np.uint64(FREE_UNKNOWN)
    return CutShort(
        trace=replace(trace, action=action, address=address),
        segments=before.segments,
        failure=FailedRequest(
            requested_bytes=int(trace.size[event]),
            event=event,
            stream=int(trace.stream[event]),
            segments=outcome.segments,
        ),
    )


def _replayed(device: Device, timeline: Timeline, recording: Recording) -> Replay:
    """Return how the recorded requests go; where all pass, how they do up to the failure that the program survived."""
    settings = recording.rules.settings()
    outcome = replay(recording.requests, settings, device, at_recorded_addresses=True)
    failure = failure_of(timeline.trace)
    if not outcome.survives or failure is None or failure.event is None:
        return outcome
    last = Last(failure.event, failure.requested_bytes, int(timeline.trace.stream[failure.event]))
    collects = settings.garbage_collection_threshold > 0
    until = requests_of(timeline, last, initial=recording.requests.initial, collects_garbage=collects)
    return replay(until, settings, device, at_recorded_addresses=True)
