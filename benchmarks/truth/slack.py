"""How much of a reserved peak is the driver's choice of addresses, which decides between equally large free blocks.

Up to torch 2.11 the block at the lowest address serves a request; where segments lie is up to the driver. The requests
of a recording are served again with addresses in several orders, and nothing is run anew. Under expandable
segments there is no such choice: the blocks of a pool and stream lie in one reserved range, whose pages are mapped from
its start on (``ExpandableSegment`` of ``c10/cuda/CUDACachingAllocator.cpp``).
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from oomscope.allocator import Driver, ReplayOutcome
from oomscope.snapshot.read.load import load_snapshot
from oomscope.snapshot.replay.recording import Recording, recording_of
from oomscope.snapshot.replay.replay import serve
from oomscope.snapshot.timeline import Timeline

POLICIES = ("bump", "down", "firstfit")
"""Ascending addresses, descending ones, and the lowest that is free."""
SHUFFLES = 3
"""Orders drawn by chance, as a driver that hashes would give them."""
_BASE = 1 << 44


class NotApplicableError(ValueError):
    """The order of addresses cannot decide anything; the message says why."""


def reserved_by_order(snapshot: Path, torch_version: str | None = None) -> dict[str, int]:
    """Return the reserved peak of a recording, in bytes, by the order of addresses.

    Raises:
        NotApplicableError: the driver chooses no addresses that matter.
    """
    found = load_snapshot(snapshot)
    [timeline] = [Timeline.of(trace, found.segments) for trace in found.traces if len(trace)]
    recording = recording_of(found, timeline, torch_version)
    if recording.rules.settings().expandable_segments:
        raise NotApplicableError("expandable segments lie in one range")
    device = recording.budget.device
    plain = Driver(device.total_bytes, device.taken_bytes)
    outcomes = {policy: _served(recording, replace(plain, policy=policy)) for policy in POLICIES}
    peaks = {policy: outcome.allocator.reserved_peak for policy, outcome in outcomes.items()}
    for seed in range(SHUFFLES):
        driver = replace(plain, policy="recorded", addresses=_shuffled(outcomes["bump"], seed))
        peaks[f"shuffle {seed + 1}"] = _served(recording, driver).allocator.reserved_peak
    return peaks


def _served(recording: Recording, driver: Driver) -> ReplayOutcome:
    return serve(recording.requests, recording.rules.settings(), recording.budget.device, driver=driver)


def _shuffled(outcome: ReplayOutcome, seed: int) -> tuple[tuple[int, int], ...]:
    """Return the segments of a replay at addresses in an order drawn by chance."""
    sizes = [event.size for event in outcome.events if event.action == "segment_alloc"]
    order = random.Random(seed).sample(range(len(sizes)), len(sizes))  # noqa: S311 # nothing is kept secret
    stride = max(sizes, default=1)
    return tuple((_BASE + place * stride, size) for place, size in zip(order, sizes, strict=True))
