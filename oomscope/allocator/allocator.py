"""The caching allocator served one request at a time, by address.

``CachingAllocator`` takes the calls that PyTorch's allocator takes and decides as it does; ``engine/`` holds the
rules. Frees that are complete at once are not reported as events, since the caller made them; frees that waited for a
stream are, as ``free_completed``, when they complete.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from oomscope.allocator.engine import serve
from oomscope.allocator.engine.constants import ADDRESS, NULL_REQUEST, OP, POOL_IN_USE, SIZE
from oomscope.allocator.engine.driver import Driver
from oomscope.allocator.engine.memory import grow, has_room
from oomscope.allocator.engine.reclaim import (
    make_events_ready,
    process_events,
    record_stream,
    release_cached,
    release_private,
)
from oomscope.allocator.settings import AllocatorSettings
from oomscope.allocator.state import DEFAULT_STREAM, AllocatorState
from oomscope.errors import UsageError
from oomscope.units import format_size

NULL = 0
"""The address of an allocation of no bytes."""


class Placement(NamedTuple):
    """Where a request was put: the address, and the bytes that its block really occupies."""

    address: int
    size: int


class DeviceOutOfMemory(Exception):  # noqa: N818 - the name of what happened, as in torch.OutOfMemoryError
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


class CachingAllocator(AllocatorState):
    """PyTorch's CUDA caching allocator on a modelled device; see ``AllocatorState`` for the arguments."""

    def __init__(
        self,
        settings: AllocatorSettings,
        driver: Driver,
        *,
        fraction: float | None = None,
        event_lag: int | None = 0,
    ) -> None:
        super().__init__(settings, driver, fraction=fraction, event_lag=event_lag)
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
