"""The caching allocator served one request at a time, by address.

``CachingAllocator`` takes the calls that PyTorch's allocator takes and decides as it does; ``engine/`` holds the
rules. Frees that are complete at once are not reported as events, since the caller made them; frees that waited for a
stream are, as ``free_completed``, when they complete.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from oomscope.allocator.engine import serve
from oomscope.allocator.engine.constants import ADDRESS, DEFAULT_STREAM_ROW, NULL_REQUEST, OP, POOL_IN_USE, SIZE
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
from oomscope.allocator.state import DEFAULT_STREAM, AllocatorState, add_pool, add_pool_stream, add_stream
from oomscope.errors import UsageError
from oomscope.units import format_size

NULL = 0
"""The address of an allocation of no bytes."""


class Placement(NamedTuple):
    """Where a request was put: the address, and the bytes that its block really occupies."""

    address: int
    size: int


class DeviceOutOfMemory(Exception):  # noqa: N818 - the name of what happened, as in torch.OutOfMemoryError
    """A request that could not be served, with all that PyTorch's message prints; every number is bytes.

    ``requested`` was asked for, ``rounded`` is the block that would have served it, ``alloc_size`` what was asked of
    the driver in vain. ``allowed`` is the limit set by a memory fraction, or None.
    """

    def __init__(
        self,
        *,
        requested: int,
        rounded: int,
        alloc_size: int,
        device_free: int,
        device_total: int,
        allowed: int | None,
        allocated: int,
        reserved: int,
    ) -> None:
        self.requested = requested
        self.rounded = rounded
        self.alloc_size = alloc_size
        self.device_free = device_free
        self.device_total = device_total
        self.allowed = allowed
        self.allocated = allocated
        self.reserved = reserved
        allowance = "" if allowed is None else f"{format_size(allowed)} allowed; "
        super().__init__(
            f"out of memory: tried to allocate {format_size(alloc_size)}; the device has {format_size(device_total)},"
            f" of which {format_size(device_free)} are free; {allowance}{format_size(allocated)} are allocated,"
            f" {format_size(reserved - allocated)} reserved but unallocated"
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
        self._streams = {DEFAULT_STREAM: self._memory[DEFAULT_STREAM_ROW]}
        self._pools: dict[int, int] = {}
        self._pool_rows: dict[tuple[int, int], int] = {}
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
        row = self._pool_row(pool, stream) if pool else self._stream_row(stream)
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
        raise self._out_of_memory(nbytes)

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
        row = self._stream_row(stream)
        self._make_room()
        record_stream(self._memory, block, row)
        self._memory[OP] += 1

    def synchronize(self, stream: int | None = None) -> None:
        """Let the events recorded so far on ``stream`` (None: on all) be complete.

        As in PyTorch the blocks become free when the next malloc looks.
        """
        rows = self._streams.values() if stream is None else (self._stream_row(stream),)
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

    def _stream_row(self, handle: int) -> int:
        row = self._streams.get(handle)
        if row is None:
            row = self._streams[handle] = add_stream(self._memory, handle)
        return row

    def _pool_row(self, pool: int, handle: int) -> int:
        row = self._pool_rows.get((pool, handle))
        if row is None:
            stream = self._stream_row(handle)
            if pool not in self._pools:
                self._pools[pool] = add_pool(self._memory, pool)
            row = self._pool_rows[pool, handle] = add_pool_stream(self._memory, self._pools[pool], stream)
        return row

    def _block(self, address: int) -> int:
        block = self._blocks.get(address)
        if block is None:
            raise UsageError(f"nothing is allocated at address {address:#x}", remedy="free what malloc returned, once")
        return block

    def _out_of_memory(self, requested: int) -> DeviceOutOfMemory:
        rounded = self.round_size(requested)
        return DeviceOutOfMemory(
            requested=requested,
            rounded=rounded,
            alloc_size=serve.segment_size(self._memory, rounded),
            device_free=self.device_free,
            device_total=self.device_total,
            allowed=self.limit_bytes,
            allocated=self.allocated_bytes,
            reserved=self.reserved_bytes,
        )
