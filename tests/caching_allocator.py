"""The emulator's engine as tests drive it: one request at a time, by address, and told of the world in between.

``CachingAllocator`` takes the calls that PyTorch's allocator takes and decides as it does. Frees that are complete at
once are not reported as events, since the caller made them; frees that waited for a stream are, as ``free_completed``,
when they complete.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from oomscope.allocator.engine import constants, serve
from oomscope.allocator.engine.constants import ADDRESS, DEFAULT_STREAM, NONE, NULL_REQUEST, OP, POOL_IN_USE, SIZE
from oomscope.allocator.engine.driver import Driver
from oomscope.allocator.engine.memory import Memory, grow, has_room
from oomscope.allocator.engine.reclaim import (
    make_events_ready,
    process_events,
    record_stream,
    release_cached,
    release_private,
)
from oomscope.allocator.replay import Replay
from oomscope.allocator.settings import AllocatorSettings
from oomscope.allocator.state import AllocatorState
from oomscope.allocator.views import AllocatorSegment
from oomscope.errors import UsageError
from oomscope.units import format_size

STAT_NAMES = (
    *("allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes", "active_bytes"),
    *("inactive_split_bytes", "requested_bytes", "oversize_allocations", "oversize_segments"),
)
"""What PyTorch calls the kinds of statistics, in the order of the engine's."""
NULL = 0
"""The address of an allocation of no bytes."""


def stats(allocator: AllocatorState) -> dict[str, Any]:
    """Return PyTorch's nested statistics of the device: what ``torch.cuda.memory_stats`` shows."""
    m, pools = allocator._memory, ("all", "small_pool", "large_pool")
    shown: dict[str, Any] = {}
    assert len(STAT_NAMES) == constants.STAT_KINDS
    for index, name in enumerate(STAT_NAMES):
        at = constants.STATS + index * constants.STAT_ROW
        of_pools = {pool: _stat(m, at + constants.STAT_FIELDS * i) for i, pool in enumerate(pools)}
        shown[name] = of_pools["all"] if name.startswith("oversize") else of_pools
    shown["num_alloc_retries"] = int(m[constants.RETRIES])
    shown["num_ooms"] = int(m[constants.OOMS])
    shown["num_sync_all_streams"] = int(m[constants.SYNCS])
    shown["num_device_alloc"] = int(m[constants.DEVICE_ALLOCS])
    shown["num_device_free"] = int(m[constants.DEVICE_FREES])
    first = getattr(allocator, "first_max_split_size", None) or allocator.settings.max_split_size
    shown["max_split_size"] = -1 if first == constants.UNLIMITED else first
    return shown


def sizes_of(segment: AllocatorSegment) -> dict[str, int]:
    """Return what PyTorch's snapshot counts of a segment: the bytes of its blocks."""
    active = [block for block in segment.blocks if block.state != "inactive"]
    return {
        "requested_size": sum(block.requested_size for block in active),
        "allocated_size": sum(block.size for block in active if block.state == "active_allocated"),
        "active_size": sum(block.size for block in active),
    }


def _stat(m: Memory, at: int) -> dict[str, int]:
    names = ("current", "peak", "allocated", "freed")
    return {name: int(m[at + field]) for field, name in enumerate(names)}


class Shown(AllocatorState):
    """What is told to an allocator from outside while it serves, and its counters."""

    first_max_split_size: int | None = None
    """The one it started with, once that was changed: torch goes on showing it."""

    def set_other_bytes(self, other_bytes: int) -> None:
        """Set how much of the device others hold from now on."""
        self._memory[constants.OTHER] = other_bytes

    def set_fraction(self, fraction: float) -> None:
        """Limit what may be reserved (``torch.cuda.set_per_process_memory_fraction``); 1 lifts the limit since 2.10."""
        self._limit(fraction)

    def set_settings(self, conf: str) -> None:
        """Change settings at run time (``torch.cuda.memory._set_allocator_settings``)."""
        self.first_max_split_size = self.first_max_split_size or self.settings.max_split_size
        self.settings = self.settings.updated(conf)
        self._apply_settings()

    def hold_events(self, held: bool) -> None:
        """While ``held``, only the wait before cached blocks are released completes an event."""
        self._memory[constants.EVENTS_HELD] = int(held)

    def stats(self) -> dict[str, Any]:
        """Return the statistics under PyTorch's names."""
        return stats(self)

    @property
    def allocated_bytes(self) -> int:
        """Bytes of blocks handed out and not freed."""
        return int(self._memory[constants.ALLOCATED_BYTES + constants.CURRENT])

    @property
    def active_bytes(self) -> int:
        """Bytes of blocks handed out or waiting for a stream."""
        return int(self._memory[constants.ACTIVE_BYTES + constants.CURRENT])

    @property
    def device_peak(self) -> int:
        """Largest physical memory taken so far, in whole device pages."""
        return int(self._memory[constants.CHARGED_PEAK])

    @property
    def device_total(self) -> int:
        """Bytes of the device."""
        return int(self._memory[constants.TOTAL])

    @property
    def limit_bytes(self) -> int | None:
        """What may be reserved under the memory fraction, or None."""
        limit = int(self._memory[constants.LIMIT])
        return None if limit == NONE else limit


class ShownReplay(Shown, Replay):
    """The replay of whole traces, which is told of the world between them."""


class Placement(NamedTuple):
    """Where a request was put: the address, and the bytes that its block really occupies."""

    address: int
    size: int


class DeviceOutOfMemory(Exception):
    """A request that could not be served, with all that PyTorch's message prints; every number is bytes."""

    def __init__(self, allocator: CachingAllocator, requested: int) -> None:
        self.requested = requested
        self.rounded = allocator.round_size(requested)
        """The block that would have served it."""
        self.alloc_size = allocator.segment_size(self.rounded)
        """What was asked of the driver in vain."""
        self.device_free = allocator.device_free
        self.device_total = allocator.device_total
        self.allowed = allocator.limit_bytes
        """The limit set by a memory fraction, or None."""
        self.allocated = allocator.allocated_bytes
        self.reserved = allocator.reserved_bytes
        allowance = "" if self.allowed is None else f"{format_size(self.allowed)} allowed; "
        super().__init__(
            f"out of memory: tried to allocate {format_size(self.alloc_size)}; "
            f"the device has {format_size(self.device_total)}, of which {format_size(self.device_free)} are free; "
            f"{allowance}{format_size(self.allocated)} are allocated, "
            f"{format_size(self.reserved - self.allocated)} reserved but unallocated"
        )


class CachingAllocator(Shown):
    """PyTorch's CUDA caching allocator on a modelled device; see ``AllocatorState`` for the arguments."""

    def __init__(self, settings: AllocatorSettings, driver: Driver, **limits: Any) -> None:
        super().__init__(settings, driver, **limits)
        self._blocks: dict[int, int] = {}

    def malloc(self, nbytes: int, stream: int = DEFAULT_STREAM, pool: int = 0) -> Placement:
        """Allocate ``nbytes`` for use on ``stream``; nothing, at address 0, for 0 bytes.

        ``pool`` is the number of a private pool, which is in use from here on, or 0 for the default one.

        Raises:
            DeviceOutOfMemory: the device has no room; the allocator stays usable.
            UsageError: a negative size.
        """
        if nbytes < 0:
            raise UsageError(f"an allocation of {nbytes} bytes was asked for", remedy="ask for 0 bytes or more")
        row = self._row(stream, pool)
        self._make_room()
        m = self._memory
        block = serve.malloc_in_pool(m, nbytes, row)
        m[OP] += 1
        if block >= 0:
            address = m[block + ADDRESS]
            self._blocks[address] = block
            return Placement(address, m[block + SIZE])
        if block == NULL_REQUEST:
            return Placement(NULL, 0)
        raise DeviceOutOfMemory(self, nbytes)

    def free(self, address: int) -> None:
        """Free what ``malloc`` returned.

        Raises:
            UsageError: nothing is allocated there.
        """
        if address == NULL:
            return
        block = self._block(address)
        self._make_room()
        serve.free(self._memory, block)
        del self._blocks[address]
        self._memory[OP] += 1

    def record_stream(self, address: int, stream: int) -> None:
        """Note that the allocation is used on ``stream``: its free will wait for that stream.

        Raises:
            UsageError: nothing is allocated there.
        """
        if address == NULL:
            return
        block = self._block(address)
        row = self._row(stream)
        self._make_room()
        record_stream(self._memory, block, row)
        self._memory[OP] += 1

    def synchronize(self, stream: int | None = None) -> None:
        """Let the events recorded so far on ``stream`` (None: on all) be complete.

        As in PyTorch the blocks become free when the next malloc looks.
        """
        rows = self._streams.values() if stream is None else (self._row(stream),)
        for row in rows:
            make_events_ready(self._memory, row)

    def empty_cache(self) -> None:
        """Wait for all events and give everything unused back to the driver (``torch.cuda.empty_cache``)."""
        self._make_room()
        release_cached(self._memory)
        self._memory[OP] += 1

    def release_pool(self, pool: int) -> None:
        """Let nothing use a private pool any more: what is cached of it is given back like what else is cached."""
        if pool in self._pools:
            self._memory[self._pools[pool] + POOL_IN_USE] = 0

    def empty_pool(self, pool: int) -> None:
        """Give what is cached of a private pool back to the driver, unless it is in use."""
        if pool in self._pools:
            self._make_room()
            process_events(self._memory)
            release_private(self._memory, self._pools[pool])
            self._memory[OP] += 1

    def _allocated_rows(self) -> Iterable[int]:
        return self._blocks.values()

    def _make_room(self) -> None:
        if not has_room(self._memory):
            grow(self._memory)

    def _block(self, address: int) -> int:
        block = self._blocks.get(address)
        if block is None:
            raise UsageError(f"nothing is allocated at address {address:#x}", remedy="free what malloc returned, once")
        return block
