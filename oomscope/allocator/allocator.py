"""The caching allocator served one request at a time, by address: what stands behind a simulated device.

``CachingAllocator`` takes the calls that PyTorch's allocator takes and decides as it does; ``engine.py`` holds the
rules. Frees that are complete at once are not reported as events, since the caller made them; frees that waited for a
stream are, as ``free_completed``, when they complete.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from oomscope.allocator import engine
from oomscope.allocator.constants import (
    ACTION_NAMES,
    ACTIVE_BYTES,
    ADDRESS,
    ALLOCATED,
    ALLOCATED_BYTES,
    BASE,
    BLOCK_ROW,
    CHARGED_PEAK,
    CURRENT,
    EVENTS_HELD,
    LIMIT,
    LOG_ACTION,
    LOG_ADDRESS,
    LOG_ALLOC_SIZE,
    LOG_BASE,
    LOG_LENGTH,
    LOG_OP,
    LOG_RANGE,
    LOG_ROW,
    LOG_SIZE,
    LOG_STREAM,
    MAPPED,
    NEXT,
    NONE,
    NULL_REQUEST,
    OOM,
    OOMS,
    OP,
    OTHER,
    PAGE,
    PEAK,
    PENDING,
    POOL,
    PREV,
    RANGE,
    REQUESTED,
    REQUESTED_BYTES,
    RESERVED_BYTES,
    RETRIES,
    ROWS_TOP,
    SIZE,
    SMALL,
    STREAM,
    STREAM_HANDLE,
    STREAM_ROW,
    TOTAL,
    USES,
)
from oomscope.allocator.control import DEFAULT_STREAM, add_stream, apply_fraction, apply_settings, new_heap
from oomscope.allocator.driver import Driver, device_free
from oomscope.allocator.heap import Heap, grown, has_room
from oomscope.allocator.reclaim import release_cached
from oomscope.allocator.settings import AllocatorSettings
from oomscope.allocator.stats import DeviceStats, device_stats
from oomscope.allocator.streams import make_events_ready, record_stream
from oomscope.errors import UsageError
from oomscope.units import format_size

NULL = 0
"""The address of an allocation of no bytes."""


class Placement(NamedTuple):
    """Where a request was put: the address, and the bytes that its block really occupies."""

    address: int
    size: int


@dataclass(frozen=True, slots=True)
class AllocatorEvent:
    """Something the allocator did besides serving a request.

    ``action`` is ``segment_alloc``, ``segment_free``, ``segment_map``, ``segment_unmap``, ``free_completed`` or
    ``oom``. ``size`` is bytes: of the segment or the mapped pages; the requested bytes of a completed free; the rounded
    request of an OOM, whose ``address`` is the free bytes of the device, as in PyTorch's traces. ``op`` counts the
    calls of the allocator. ``range`` numbers segments and reservations in order of creation and ``offset`` is the
    place in it; both are NONE for an OOM, which alone has an ``alloc_size``: what was asked of the driver.
    """

    action: str
    address: int
    size: int
    stream: int
    op: int
    range: int
    offset: int
    alloc_size: int = 0


@dataclass(frozen=True, slots=True)
class AllocatorBlock:
    """A block as PyTorch's snapshot shows it; ``state`` is active_allocated, active_pending_free or inactive."""

    address: int
    size: int
    requested_size: int
    state: str


@dataclass(frozen=True, slots=True)
class AllocatorSegment:
    """A segment of cudaMalloc, or a run of mapped pages of an expandable one, with all of its blocks."""

    address: int
    total_size: int
    stream: int
    segment_type: str
    is_expandable: bool
    range: int
    offset: int
    blocks: tuple[AllocatorBlock, ...]

    @property
    def allocated_size(self) -> int:
        """Bytes of the blocks that are allocated."""
        return sum(block.size for block in self.blocks if block.state == "active_allocated")

    @property
    def active_size(self) -> int:
        """Bytes of the blocks that are allocated or wait for a stream."""
        return sum(block.size for block in self.blocks if block.state != "inactive")

    @property
    def requested_size(self) -> int:
        """Bytes that were requested of the active blocks."""
        return sum(block.requested_size for block in self.blocks)


class DeviceOutOfMemory(Exception):  # noqa: N818 - the name of what happened, as in torch.OutOfMemoryError
    """A request that could not be served, with all that PyTorch's message prints; every number is bytes.

    ``allowed`` is the limit set by a memory fraction, or None.
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


class CachingAllocator:
    """PyTorch's CUDA caching allocator on a modelled device.

    Args:
        settings: what PYTORCH_ALLOC_CONF says, and for which torch.
        driver: the device.
        fraction: ``set_per_process_memory_fraction`` before the first allocation; None leaves it to the settings.
        event_lag: after how many further mallocs the events of a free complete: 0 at the next one, None only through
            ``synchronize`` or the wait before cached blocks are released.
    """

    def __init__(
        self,
        settings: AllocatorSettings,
        driver: Driver,
        *,
        fraction: float | None = None,
        event_lag: int | None = 0,
    ) -> None:
        self._settings = settings
        self._first_max_split_size = settings.max_split_size
        self._heap = new_heap(settings, driver, fraction, event_lag, ())
        self._streams = {DEFAULT_STREAM: 0}
        self._blocks: dict[int, int] = {}

    # ---- requests -----------------------------------------------------------------------------------------------

    def malloc(self, nbytes: int, stream: int = DEFAULT_STREAM) -> Placement:
        """Allocate ``nbytes`` for use on ``stream``; nothing, at address 0, for 0 bytes.

        Raises:
            DeviceOutOfMemory: the device has no room; the allocator stays usable.
            UsageError: a negative size.
        """
        if nbytes < 0:
            raise UsageError(f"an allocation of {nbytes} bytes was asked for", remedy="ask for 0 bytes or more")
        row = self._stream_row(stream)
        self._make_room()
        heap = self._heap
        block = engine.malloc(heap, nbytes, row)
        heap.n[OP] += 1
        if block >= 0:
            address = heap.blocks[block + ADDRESS]
            self._blocks[address] = block
            return Placement(address, heap.blocks[block + SIZE])
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
        engine.free(self._heap, block)
        del self._blocks[address]
        self._heap.n[OP] += 1

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
        record_stream(self._heap, block, row)
        self._heap.n[OP] += 1

    def synchronize(self, stream: int | None = None) -> None:
        """Let the events recorded so far on ``stream`` (None: on all) be complete.

        As in PyTorch the blocks become free when the next malloc looks.
        """
        rows = self._streams.values() if stream is None else (self._stream_row(stream),)
        for row in rows:
            make_events_ready(self._heap, row)

    def hold_events(self, held: bool) -> None:
        """While ``held``, only the wait before cached blocks are released completes an event."""
        self._heap.n[EVENTS_HELD] = int(held)

    def empty_cache(self) -> None:
        """Wait for all events and give everything unused back to the driver (``torch.cuda.empty_cache``)."""
        self._make_room()
        release_cached(self._heap)
        self._heap.n[OP] += 1

    # ---- the world around it ------------------------------------------------------------------------------------

    def set_other_bytes(self, other_bytes: int) -> None:
        """Say how much of the device others hold from now on."""
        if other_bytes < 0:
            raise UsageError(f"other_bytes is {other_bytes}", remedy="give the bytes that others hold, 0 or more")
        self._heap.n[OTHER] = other_bytes

    def set_fraction(self, fraction: float) -> None:
        """Limit what may be reserved (``torch.cuda.set_per_process_memory_fraction``); 1 lifts the limit."""
        apply_fraction(self._heap.n, self._settings, fraction)

    def set_settings(self, conf: str) -> None:
        """Change settings at run time (``torch.cuda.memory._set_allocator_settings``).

        Raises:
            AllocatorConfError: see ``AllocatorSettings.parse``.
        """
        self._settings = self._settings.updated(conf)
        apply_settings(self._heap.n, self._settings)

    # ---- what it did and holds ----------------------------------------------------------------------------------

    @property
    def settings(self) -> AllocatorSettings:
        """The settings in force."""
        return self._settings

    def round_size(self, nbytes: int) -> int:
        """Return the size of the block that would serve ``nbytes``; 0 for 0 bytes."""
        return engine.round_size(self._heap.n, nbytes) if nbytes else 0

    def drain_events(self) -> list[AllocatorEvent]:
        """Return what happened since the last call, in order, and forget it."""
        events = [self._event(row) for row in range(self._heap.n[LOG_LENGTH])]
        self._heap.n[LOG_LENGTH] = 0
        return events

    def stats(self) -> DeviceStats:
        """Return the statistics under PyTorch's names."""
        return device_stats(self._heap.n, self._first_max_split_size)

    @property
    def allocated_bytes(self) -> int:
        """Bytes of blocks handed out and not freed."""
        return self._heap.n[ALLOCATED_BYTES + CURRENT]

    @property
    def allocated_peak(self) -> int:
        """Largest ``allocated_bytes`` so far."""
        return self._heap.n[ALLOCATED_BYTES + PEAK]

    @property
    def active_bytes(self) -> int:
        """Bytes of blocks handed out or waiting for a stream."""
        return self._heap.n[ACTIVE_BYTES + CURRENT]

    @property
    def active_peak(self) -> int:
        """Largest ``active_bytes`` so far."""
        return self._heap.n[ACTIVE_BYTES + PEAK]

    @property
    def requested_bytes(self) -> int:
        """Bytes that were requested of the active blocks, before rounding."""
        return self._heap.n[REQUESTED_BYTES + CURRENT]

    @property
    def requested_peak(self) -> int:
        """Largest ``requested_bytes`` so far."""
        return self._heap.n[REQUESTED_BYTES + PEAK]

    @property
    def reserved_bytes(self) -> int:
        """Bytes held from the driver."""
        return self._heap.n[RESERVED_BYTES + CURRENT]

    @property
    def reserved_peak(self) -> int:
        """Largest ``reserved_bytes`` so far."""
        return self._heap.n[RESERVED_BYTES + PEAK]

    @property
    def device_peak(self) -> int:
        """Largest physical memory taken so far, in whole device pages."""
        return self._heap.n[CHARGED_PEAK]

    @property
    def device_free(self) -> int:
        """Bytes of the device that nobody holds, as ``cudaMemGetInfo`` tells."""
        return device_free(self._heap.n)

    @property
    def limit_bytes(self) -> int | None:
        """What may be reserved under the memory fraction, or None."""
        limit = self._heap.n[LIMIT]
        return None if limit == NONE else limit

    @property
    def num_alloc_retries(self) -> int:
        """How often cached blocks were released for a request."""
        return self._heap.n[RETRIES]

    @property
    def num_ooms(self) -> int:
        """How many requests failed."""
        return self._heap.n[OOMS]

    def block_at(self, address: int) -> AllocatorBlock | None:
        """Return the allocated block that starts at ``address``, or None."""
        block = self._blocks.get(address)
        return None if block is None else self._describe(block)

    def live_blocks(self) -> list[AllocatorBlock]:
        """Return all allocated blocks, by address."""
        return [self._describe(self._blocks[address]) for address in sorted(self._blocks)]

    def segments(self) -> list[AllocatorSegment]:
        """Return everything held from the driver, by address."""
        return segments_of(self._heap)

    # ---- inside -------------------------------------------------------------------------------------------------

    def _make_room(self) -> None:
        if not has_room(self._heap):
            self._heap = grown(self._heap)

    def _stream_row(self, handle: int) -> int:
        row = self._streams.get(handle)
        if row is None:
            row = self._streams[handle] = len(self._streams)
            self._heap = add_stream(self._heap, handle)
        return row

    def _block(self, address: int) -> int:
        block = self._blocks.get(address)
        if block is None:
            raise UsageError(f"nothing is allocated at address {address:#x}", remedy="free what malloc returned, once")
        return block

    def _describe(self, block: int) -> AllocatorBlock:
        return describe_block(self._heap, block)

    def _event(self, row: int) -> AllocatorEvent:
        return read_event(self._heap, row)

    def _out_of_memory(self, requested: int) -> DeviceOutOfMemory:
        n = self._heap.n
        oom = self._event(n[LOG_LENGTH] - 1)
        return DeviceOutOfMemory(
            requested=requested,
            rounded=oom.size,
            alloc_size=oom.alloc_size,
            device_free=oom.address,
            device_total=n[TOTAL],
            allowed=self.limit_bytes,
            allocated=self.allocated_bytes,
            reserved=self.reserved_bytes,
        )


def read_event(heap: Heap, row: int) -> AllocatorEvent:
    """Return one row of the log."""
    at = row * LOG_ROW
    log = heap.log
    is_oom = log[at + LOG_ACTION] == OOM
    return AllocatorEvent(
        action=ACTION_NAMES[log[at + LOG_ACTION]],
        address=log[at + LOG_ADDRESS],
        size=log[at + LOG_SIZE],
        stream=heap.streams[log[at + LOG_STREAM] * STREAM_ROW + STREAM_HANDLE],
        op=log[at + LOG_OP],
        range=log[at + LOG_RANGE],
        offset=NONE if is_oom else log[at + LOG_ADDRESS] - log[at + LOG_BASE],
        alloc_size=log[at + LOG_ALLOC_SIZE] if is_oom else 0,
    )


def describe_block(heap: Heap, block: int) -> AllocatorBlock:
    """Return a mapped block as a snapshot shows it."""
    row = heap.blocks
    active = row[block + PENDING] > 0 or row[block + USES] != NONE
    state = "active_allocated" if row[block + ALLOCATED] else "active_pending_free" if active else "inactive"
    requested = 0 if state == "inactive" else row[block + REQUESTED]
    return AllocatorBlock(row[block + ADDRESS], row[block + SIZE], requested, state)


def segments_of(heap: Heap) -> list[AllocatorSegment]:
    """Return all segments by address; a reservation counts as one segment for each run of mapped blocks."""
    row = heap.blocks
    segments: list[AllocatorSegment] = []
    for head in range(0, heap.n[ROWS_TOP], BLOCK_ROW):
        if row[head + SIZE] == 0 or row[head + PREV] != NONE:
            continue
        run: list[int] = []
        block = head
        while block != NONE:
            if row[block + MAPPED]:
                run.append(block)
            elif run:
                segments.append(_segment(heap, run))
                run = []
            block = row[block + NEXT]
        if run:
            segments.append(_segment(heap, run))
    return sorted(segments, key=lambda segment: segment.address)


def _segment(heap: Heap, run: list[int]) -> AllocatorSegment:
    row = heap.blocks
    head = run[0]
    return AllocatorSegment(
        address=row[head + ADDRESS],
        total_size=sum(row[block + SIZE] for block in run),
        stream=heap.streams[row[head + STREAM] * STREAM_ROW + STREAM_HANDLE],
        segment_type="small" if row[head + POOL] == SMALL else "large",
        is_expandable=row[head + PAGE] > 0,
        range=row[head + RANGE],
        offset=row[head + ADDRESS] - row[head + BASE],
        blocks=tuple(describe_block(heap, block) for block in run),
    )
