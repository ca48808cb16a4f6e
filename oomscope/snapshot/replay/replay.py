"""Put a trace's requests to the emulated allocator, under its own settings or others, and see what happens.

Nothing is estimated: a setting cures a failure if the same requests in the same order pass under it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import numpy as np

from oomscope.allocator import AllocatorSegment, AllocatorSettings, Driver, ReplayOp, ReplayOutcome
from oomscope.allocator import replay as run
from oomscope.allocator.engine.constants import SMALL_SEGMENT
from oomscope.allocator.engine.expandable import reservation_size
from oomscope.snapshot.accounting.timeline import Curve
from oomscope.snapshot.replay.gaps import request_as_seen
from oomscope.snapshot.replay.pools import PoolId
from oomscope.snapshot.replay.requests import Kind, Requests
from oomscope.snapshot.trace import DEFAULT_POOL, HIGHEST_ADDRESS, Block, Segment
from oomscope.units import MiB

_SPAN: Final = 32 * MiB
"""Bytes of the spans in which a driver for Linux gives addresses."""
SIGN: Final = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
"""Sign of the change of reserved bytes, by the action towards the driver."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """The card under a replay, in bytes."""

    total_bytes: int
    """Total bytes as the driver reports them; with ``--limit`` the limit."""
    non_torch_bytes: int = 0
    """Bytes held by this process outside the caching allocator."""
    other_process_bytes: int = 0
    """Bytes held by other processes."""
    fraction: float | None = None
    """Fraction of ``set_per_process_memory_fraction``, where it was set."""

    @property
    def taken_bytes(self) -> int:
        """What the caching allocator does not get."""
        return self.non_torch_bytes + self.other_process_bytes

    @property
    def available_bytes(self) -> int:
        """D: what the caching allocator may hold."""
        left = max(0, self.total_bytes - self.taken_bytes)
        return left if self.fraction is None else min(left, int(self.fraction * self.total_bytes))

    def without_other_processes(self) -> Device:
        """Return the same card without other processes; a fraction that made room for them grows by their bytes."""
        fraction = self.fraction
        if fraction is not None:
            fraction = min(1.0, fraction + self.other_process_bytes / self.total_bytes)
        return Device(total_bytes=self.total_bytes, non_torch_bytes=self.non_torch_bytes, fraction=fraction)


@dataclass(frozen=True, kw_only=True)
class Replay:
    """How the requests went."""

    peak_reserved_bytes: int
    """Largest reserved bytes, up to the failure where there was one."""
    margin_bytes: int
    """Device bytes left at that peak; after a failure, what was free less the piece that the allocator takes from the
    device for the request, and thus negative."""
    retries: int
    """Number of times that cached blocks were released to serve a request."""
    failed_event: int | None = None
    """The event whose request failed; None where all passed."""
    repeated: bool = False
    """Whether the failed request succeeded when it was repeated at once."""
    segments: tuple[Segment, ...] = ()
    """The allocator's segments at the failure, or at the end."""
    reserved: Curve = field(default_factory=lambda: np.zeros(0, dtype=np.int64), compare=False, repr=False)
    """Reserved bytes right after each event of the trace, up to the last request."""

    @property
    def survives(self) -> bool:
        """Whether every request was served."""
        return self.failed_event is None

    def overhead_at(self, event: int, requested_bytes: int) -> int | None:
        """Return what is reserved beyond ``requested_bytes`` right after ``event``; None where a request failed."""
        if not self.survives or not 0 <= event < len(self.reserved):
            return None
        return int(self.reserved[event]) - requested_bytes


def replay(
    requests: Requests, settings: AllocatorSettings, device: Device, *, at_recorded_addresses: bool = False
) -> Replay:
    """Serve ``requests``, as :func:`serve` does, until one fails or all have passed.

    Where the device is too small for what the allocator held before, the blocks of then are repacked.
    """
    requests = fitting(requests, device)
    outcome = serve(requests, settings, device, at_recorded_addresses=at_recorded_addresses)
    return result_of(outcome, requests, settings, device, at_recorded_addresses=at_recorded_addresses)


def result_of(
    outcome: ReplayOutcome,
    requests: Requests,
    settings: AllocatorSettings,
    device: Device,
    *,
    at_recorded_addresses: bool = False,
) -> Replay:
    """Return how the requests went up to the first failure; ``outcome`` is that of :func:`serve` with the rest."""
    failed = np.flatnonzero(outcome.failed & (requests.kind == Kind.MALLOC))
    failure = int(failed[0]) if len(failed) else None
    if failure is not None and failure + 1 < len(requests):
        requests = requests.first(failure + 1)
        outcome = serve(requests, settings, device, at_recorded_addresses=at_recorded_addresses)
    allocator = outcome.allocator
    done = Replay(
        peak_reserved_bytes=allocator.reserved_peak,
        margin_bytes=device.available_bytes - allocator.reserved_peak,
        retries=allocator.num_alloc_retries,
        segments=segments_of(allocator.segments(), pool_ids=requests.pool_ids),
        reserved=_reserved_curve(requests, outcome),
    )
    if failure is None:
        return done
    free = min(allocator.device_free, device.available_bytes - allocator.reserved_bytes)
    at = slice(failure, failure + 1)
    request = requests.block[at], requests.size[at], requests.stream[at], requests.pool[at]
    return replace(
        done,
        margin_bytes=free - request_as_seen(settings, int(requests.size[failure]), 0).taken_from_driver,
        failed_event=int(requests.event[failure]),
        repeated=not allocator.run([ReplayOp.MALLOC], *request).failed.any(),
    )


def fitting(requests: Requests, device: Device) -> Requests:
    """Return ``requests``; with older blocks repacked where the device cannot hold what the allocator held before."""
    return requests if requests.held_bytes <= device.available_bytes else requests.begun_afresh


def serve(
    requests: Requests,
    settings: AllocatorSettings,
    device: Device,
    *,
    at_recorded_addresses: bool = False,
) -> ReplayOutcome:
    """Serve all requests, whichever fail.

    ``at_recorded_addresses``: the driver gives the addresses that it gave in the recording. They decide between equally
    large blocks up to torch 2.11, and mean something only under the recorded settings.

    Raises:
        UsageError: the device is too small for what was held before the first request, or too large to model.
    """
    total = max(1, device.total_bytes)  # a driver has memory; one byte serves no request either
    driver = Driver(total, min(total, device.taken_bytes), policy=_address_policy(requests))
    if at_recorded_addresses:
        pages = {"small": SMALL_SEGMENT, "large": settings.large_segment_size}
        reservations = requests.initial.reservations if requests.initial else ()
        ranges = ((base, reservation_size(device.total_bytes, pages[pool])) for base, pool in reservations)
        addresses = tuple(each for each in (*requests.addresses, *ranges) if sum(each) <= HIGHEST_ADDRESS)
        driver = replace(driver, policy="recorded", addresses=addresses)
    return run(
        requests.operations,
        requests.block,
        requests.size,
        requests.stream,
        settings=settings,
        driver=driver,
        fraction=device.fraction,
        event_lag=None,
        held=requests.held,
        pools=requests.pool if requests.has_private_pools else None,
    )


def _address_policy(requests: Requests) -> str:
    """Return whether addresses other than the recorded ones go down, as most spans of the recording do, or up.

    Inside a span a driver for Linux goes up (oomscope/virtual/csrc/memory/spans.h).
    """
    spans = [address // _SPAN for address, _ in requests.addresses]
    balance = sum((after > before) - (after < before) for before, after in pairwise(spans))
    return "down" if balance < 0 else "bump"


def _reserved_curve(requests: Requests, outcome: ReplayOutcome) -> Curve:
    """Return the reserved bytes after each event; what was held before counts from the start."""
    end = int(requests.event[-1]) + 1 if len(requests) else 0
    change = np.zeros(end + 1, dtype=np.int64)
    change[0] = requests.held_bytes
    for event in outcome.events:
        change[requests.event[event.op] + 1] += SIGN.get(event.action, 0) * event.size
    return np.cumsum(change)[1:]


def segments_of(
    segments: list[AllocatorSegment], device: int = 0, *, pool_ids: tuple[PoolId, ...] = (DEFAULT_POOL,)
) -> tuple[Segment, ...]:
    """Return the emulator's segments in the terms of a snapshot; ``pool_ids`` are the pools that they number."""
    return tuple(
        Segment(
            device=device,
            address=segment.address,
            total_size=segment.total_size,
            stream=segment.stream,
            segment_type=segment.segment_type,
            is_expandable=segment.is_expandable,
            pool_id=pool_ids[segment.pool],
            blocks=tuple(
                Block(address=block.address, size=block.size, requested_size=block.requested_size, state=block.state)
                for block in segment.blocks
            ),
        )
        for segment in segments
    )
