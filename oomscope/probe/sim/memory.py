"""Serves storages from the emulated allocator and writes what happens into the trace.

A storage that is born gets a block and dies with a free, at the instant torch drops it. When the allocator gives
up, :meth:`SimMemory.serve` raises ``torch.OutOfMemoryError`` with torch's own message shape, and the state at
that instant is kept.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch

from oomscope.allocator import AllocatorEvent, AllocatorSettings, CachingAllocator, DeviceOutOfMemory, Driver
from oomscope.probe.measurement import FailedAllocation
from oomscope.probe.sim.position import Origin, Position
from oomscope.snapshot.builder import TraceBuilder
from oomscope.snapshot.replaying.replay import segments_of
from oomscope.snapshot.trace import Action, Category, Segment
from oomscope.units import format_size

ACTIONS: Final = {
    "segment_alloc": Action.SEGMENT_ALLOC,
    "segment_free": Action.SEGMENT_FREE,
    "segment_map": Action.SEGMENT_MAP,
    "segment_unmap": Action.SEGMENT_UNMAP,
    "free_completed": Action.FREE_COMPLETED,
    "oom": Action.OOM,
}


@dataclass(slots=True)
class Tenant:
    """A live storage and the block that serves it."""

    address: int
    nbytes: int
    event: int
    """Index of its alloc event."""
    stream: int
    category: Category
    of_forward: bool
    """Born in forward or loss: an activation, if it outlives them."""


class SimMemory:
    """The card's memory during one session.

    Args:
        settings: allocator rules and options.
        driver: the card: total bytes and what others hold.
        builder: receives the events.
        position: tells where the program is.
        event_lag: see ``CachingAllocator``.
    """

    def __init__(
        self,
        settings: AllocatorSettings,
        driver: Driver,
        builder: TraceBuilder,
        position: Position,
        *,
        event_lag: int,
    ) -> None:
        self.allocator = CachingAllocator(settings, driver, event_lag=event_lag)
        self.total_bytes = driver.total_bytes
        self.builder = builder
        self.position = position
        self.failure: FailedAllocation | None = None
        self._tenants: dict[int, tuple[weakref.ref[torch.UntypedStorage], Tenant]] = {}
        self._newborn: list[Tenant] = []
        self._clock = 0

    # Storages -------------------------------------------------------------------------------------------------

    @property
    def served(self) -> bool:
        """Whether anything was ever allocated."""
        return self._clock > 0

    def tenant_of(self, storage: torch.UntypedStorage) -> Tenant | None:
        """Return the tenant that ``storage`` is, if it was ever served."""
        entry = self._tenants.get(storage._cdata)
        return entry[1] if entry else None

    def adopt(self, storage: torch.UntypedStorage, origin: Origin, category: Category, *, forward: int = 0) -> None:
        """Serve a storage that was just born, or has grown under an operation; its death frees the block.

        Raises:
            torch.OutOfMemoryError: the allocator cannot serve it.
        """
        key = storage._cdata
        nbytes = storage.nbytes()
        known = self._tenants.get(key)
        if known is not None:
            if known[1].nbytes != nbytes:
                self.resized(storage, origin, known[1].category)
            return
        tenant = self.serve(nbytes, origin, category, forward=forward)
        self._tenants[key] = (weakref.ref(storage, partial(self._storage_died, key)), tenant)
        self._newborn.append(tenant)

    def resized(self, storage: torch.UntypedStorage, origin: Origin, category: Category) -> None:
        """Serve ``storage`` anew after ``resize_`` gave it another number of bytes."""
        tenant = self.tenant_of(storage)
        nbytes = storage.nbytes()
        if tenant is None or tenant.nbytes == nbytes:
            return
        old = (tenant.address, tenant.nbytes, tenant.stream)
        fresh = self.serve(nbytes, origin, category)
        tenant.address, tenant.nbytes, tenant.event = fresh.address, nbytes, fresh.event
        tenant.stream, tenant.of_forward, tenant.category = fresh.stream, fresh.of_forward, category
        self._release(*old)
        self._newborn.append(tenant)

    def _storage_died(self, key: int, _: object) -> None:
        _, tenant = self._tenants.pop(key)
        self._release(tenant.address, tenant.nbytes, tenant.stream)

    # Blocks -----------------------------------------------------------------------------------------------------

    def serve(self, nbytes: int, origin: Origin, category: Category, *, forward: int = 0) -> Tenant:
        """Allocate ``nbytes`` on the origin's stream and record it. Zero bytes take no block and no event.

        Raises:
            torch.OutOfMemoryError: the allocator cannot serve it; the failure is kept in :attr:`failure`.
        """
        of_forward = self.position.moment.phase in {"forward", "loss"}
        if nbytes == 0:
            return Tenant(0, 0, -1, origin.stream, category, of_forward)
        try:
            placement = self.allocator.malloc(nbytes, origin.stream)
        except DeviceOutOfMemory as error:
            raise self._fail(error, nbytes, origin, forward) from None
        self._record_driver_events(origin)
        event = self.builder.event(
            Action.ALLOC,
            placement.address,
            nbytes,
            origin.stream,
            self._tick(),
            origin.stack,
            self.position.moment_id,
            category,
            origin.module,
            forward,
        )
        return Tenant(placement.address, nbytes, event, origin.stream, category, of_forward)

    def release(self, tenant: Tenant) -> None:
        """Free a block that :meth:`serve` returned."""
        self._release(tenant.address, tenant.nbytes, tenant.stream)

    @contextmanager
    def borrowed(self, sizes: Iterable[tuple[int, Category]], origin: Origin, *, forward: int = 0) -> Iterator[None]:
        """Hold blocks of ``sizes`` for the duration: what a kernel allocates inside."""
        held: list[Tenant] = []
        try:
            for nbytes, category in sizes:
                held.append(self.serve(nbytes, origin, category, forward=forward))
            yield
        finally:
            for tenant in reversed(held):
                self.release(tenant)

    def record_stream(self, storage: torch.UntypedStorage, stream: int) -> None:
        """Note that ``stream`` uses the storage too: its free waits for that stream."""
        tenant = self.tenant_of(storage)
        if tenant is not None and tenant.address:
            self.allocator.record_stream(tenant.address, stream)

    def synchronize(self, stream: int | None) -> None:
        """Complete what is pending on ``stream`` (None: on all)."""
        self.allocator.synchronize(stream)
        self._record_driver_events(None)

    def _release(self, address: int, nbytes: int, stream: int) -> None:
        if not address:
            return
        moment = self.position.moment_id
        self.builder.event(Action.FREE_REQUESTED, address, nbytes, stream, self._tick(), 0, moment)
        active = self.allocator.active_bytes
        self.allocator.free(address)
        if self.allocator.active_bytes < active:
            self.builder.event(Action.FREE_COMPLETED, address, nbytes, stream, self._tick(), 0, moment)

    def _record_driver_events(self, origin: Origin | None) -> None:
        stack = origin.stack if origin else 0
        for event in self.allocator.drain_events():
            self._record(event, stack)

    def _record(self, event: AllocatorEvent, stack: int) -> None:
        action = ACTIONS[event.action]
        self.builder.event(
            action,
            event.address,
            event.size,
            event.stream,
            self._tick(),
            0 if action is Action.FREE_COMPLETED else stack,
            self.position.moment_id,
        )

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    # Failure ----------------------------------------------------------------------------------------------------

    def _fail(self, error: DeviceOutOfMemory, nbytes: int, origin: Origin, forward: int) -> torch.OutOfMemoryError:
        event = None
        for occurred in self.allocator.drain_events():
            action = ACTIONS[occurred.action]
            if action is Action.OOM:
                event = self.builder.event(
                    action,
                    error.device_free,
                    nbytes,
                    origin.stream,
                    self._tick(),
                    origin.stack,
                    self.position.moment_id,
                    Category.UNKNOWN,
                    origin.module,
                    forward,
                )
            else:
                self._record(occurred, origin.stack)
        self.settle()
        message = oom_message(error)
        self.failure = FailedAllocation(
            requested_bytes=nbytes,
            message=message,
            moment=self.position.moment,
            event=event,
            segments=self.segments(),
            device_free_bytes=error.device_free,
        )
        return torch.OutOfMemoryError(message)

    # Categories -------------------------------------------------------------------------------------------------

    def label(self, storage: torch.UntypedStorage, category: Category) -> None:
        """Say what ``storage`` is for."""
        tenant = self.tenant_of(storage)
        if tenant is not None:
            self.relabel(tenant, category)

    def relabel(self, tenant: Tenant, category: Category) -> None:
        """Say what a tenant is for."""
        tenant.category = category
        if tenant.event >= 0:
            self.builder.set_category(tenant.event, category)

    def settle(self) -> None:
        """Sort what forward left behind: received buffers and temporaries still alive are activations."""
        passing = {Category.TEMPORARY, Category.COMMUNICATION}
        alive = {id(tenant) for _, tenant in self._tenants.values()}
        for tenant in self._newborn:
            if tenant.category in passing and tenant.of_forward and id(tenant) in alive:
                self.relabel(tenant, Category.ACTIVATION)
        self._newborn.clear()

    # The state ----------------------------------------------------------------------------------------------------

    def segments(self) -> tuple[Segment, ...]:
        """Return the allocator's segments and blocks in the terms of a snapshot."""
        return segments_of(self.allocator.segments())


def oom_message(error: DeviceOutOfMemory) -> str:
    """Return the text of torch's OutOfMemoryError (PyTorch c10/cuda/CUDACachingAllocator.cpp), for this failure."""
    unused = error.reserved - error.allocated
    return (
        f"CUDA out of memory. Tried to allocate {format_size(error.alloc_size)}. "
        f"GPU 0 has a total capacity of {format_size(error.device_total)} "
        f"of which {format_size(error.device_free)} is free. "
        f"Of the allocated memory {format_size(error.allocated)} is allocated by PyTorch, "
        f"and {format_size(unused)} is reserved by PyTorch but unallocated. "
        "If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True "
        "to avoid fragmentation. (simulated device)"
    )
