"""How much of a reserved peak is the driver's choice of addresses, which decides between equally large free blocks.

Up to torch 2.11 the block at the lowest address serves a request; where segments lie is up to the driver. The requests
that a simulation recorded are served again with addresses in several orders, and nothing is run anew.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from oomscope.allocator import AllocatorSettings, Driver, ReplayOutcome, replay
from oomscope.snapshot.reading.load import load_snapshot
from oomscope.snapshot.replaying.recording import Recording, recording_of
from oomscope.snapshot.timeline import Timeline

POLICIES = ("bump", "down", "firstfit")
"""Ascending addresses, descending ones, and the lowest that is free."""
SHUFFLES = 3
"""Orders drawn by chance, as a driver that hashes would give them."""
_BASE = 1 << 44


def reserved_by_order(snapshot: Path, torch_version: str | None = None) -> dict[str, int]:
    """Return the reserved peak of a recording by the order of addresses."""
    found = load_snapshot(snapshot)
    [timeline] = [Timeline.of(trace, found.segments) for trace in found.traces if len(trace)]
    recording = recording_of(found, timeline, torch_version)
    settings = recording.rules.settings()
    plain = Driver(recording.budget.device.total_bytes, recording.budget.device.taken_bytes)
    outcomes = {policy: _served(recording, settings, replace(plain, policy=policy)) for policy in POLICIES}
    peaks = {policy: outcome.allocator.reserved_peak for policy, outcome in outcomes.items()}
    for seed in range(SHUFFLES):
        driver = replace(plain, policy="recorded", addresses=_shuffled(outcomes["bump"], seed))
        peaks[f"shuffle {seed + 1}"] = _served(recording, settings, driver).allocator.reserved_peak
    return peaks


def _served(recording: Recording, settings: AllocatorSettings, driver: Driver) -> ReplayOutcome:
    requests = recording.requests
    return replay(
        requests.operations,
        requests.block,
        requests.size,
        requests.stream,
        settings=settings,
        driver=driver,
        fraction=recording.budget.device.fraction,
        event_lag=None,
        held=requests.held,
    )


def _shuffled(outcome: ReplayOutcome, seed: int) -> tuple[tuple[int, int], ...]:
    """Return the segments of a replay at addresses in an order drawn by chance."""
    sizes = [event.size for event in outcome.events if event.action == "segment_alloc"]
    order = random.Random(seed).sample(range(len(sizes)), len(sizes))  # noqa: S311 # nothing is kept secret
    stride = max(sizes, default=1)
    return tuple((_BASE + place * stride, size) for place, size in zip(order, sizes, strict=True))
