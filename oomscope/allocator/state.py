"""What an allocator in whatever shape can be told and asked: limits, settings, counters, events, segments."""

from __future__ import annotations

from collections.abc import Iterable

from oomscope.allocator import engine
from oomscope.allocator.constants import (
    ACTIVE_BYTES,
    ALLOCATED_BYTES,
    CHARGED_PEAK,
    CURRENT,
    EVENTS_HELD,
    LIMIT,
    NONE,
    OOMS,
    OTHER,
    PEAK,
    REQUESTED_BYTES,
    RESERVED_BYTES,
    RETRIES,
    TIES,
    TOTAL,
)
from oomscope.allocator.control import apply_fraction, apply_settings, new_memory
from oomscope.allocator.driver import Driver, device_free
from oomscope.allocator.settings import AllocatorSettings
from oomscope.allocator.stats import DeviceStats, device_stats
from oomscope.allocator.views import AllocatorEvent, AllocatorSegment, drain_log, segments_of
from oomscope.errors import UsageError


class AllocatorState:
    """An allocator's memory, and what does not depend on how requests reach it.

    Args:
        settings: what PYTORCH_ALLOC_CONF says, and for which torch.
        driver: the device.
        fraction: ``set_per_process_memory_fraction`` before the first allocation; None leaves it to the settings.
        event_lag: after how many further mallocs the events of a free complete: 0 at the next one, None only through
            a synchronisation or the wait before cached blocks are released.

    Raises:
        UsageError: a negative fraction or event lag.
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
        self._memory = new_memory(settings, driver, fraction, event_lag)

    # ---- the world around it ------------------------------------------------------------------------------------

    def set_other_bytes(self, other_bytes: int) -> None:
        """Say how much of the device others hold from now on.

        Raises:
            UsageError: a negative size.
        """
        if other_bytes < 0:
            raise UsageError(f"other_bytes is {other_bytes}", remedy="give the bytes that others hold, 0 or more")
        self._memory[OTHER] = other_bytes

    def set_fraction(self, fraction: float) -> None:
        """Limit what may be reserved (``torch.cuda.set_per_process_memory_fraction``); 1 lifts the limit since 2.10.

        Raises:
            UsageError: a negative fraction.
        """
        apply_fraction(self._memory, self._settings, fraction)

    def set_settings(self, conf: str) -> None:
        """Change settings at run time (``torch.cuda.memory._set_allocator_settings``).

        Raises:
            AllocatorConfError: see ``AllocatorSettings.parse``.
        """
        self._settings = self._settings.updated(conf)
        apply_settings(self._memory, self._settings)

    def hold_events(self, held: bool) -> None:
        """While ``held``, only the wait before cached blocks are released completes an event."""
        self._memory[EVENTS_HELD] = int(held)

    # ---- what it did and holds ----------------------------------------------------------------------------------

    @property
    def settings(self) -> AllocatorSettings:
        """The settings in force."""
        return self._settings

    def round_size(self, nbytes: int) -> int:
        """Return the size of the block that would serve ``nbytes``; 0 for 0 bytes."""
        return int(engine.round_size(self._memory, nbytes)) if nbytes else 0

    def drain_events(self) -> list[AllocatorEvent]:
        """Return what happened since the last call, in order, and forget it."""
        return drain_log(self._memory)

    def stats(self) -> DeviceStats:
        """Return the statistics under PyTorch's names."""
        return device_stats(self._memory, self._first_max_split_size)

    def segments(self) -> list[AllocatorSegment]:
        """Return everything held from the driver, by address."""
        return segments_of(self._memory, self._allocated_rows())

    def _allocated_rows(self) -> Iterable[int]:
        raise NotImplementedError

    @property
    def allocated_bytes(self) -> int:
        """Bytes of blocks handed out and not freed."""
        return int(self._memory[ALLOCATED_BYTES + CURRENT])

    @property
    def allocated_peak(self) -> int:
        """Largest ``allocated_bytes`` so far."""
        return int(self._memory[ALLOCATED_BYTES + PEAK])

    @property
    def active_bytes(self) -> int:
        """Bytes of blocks handed out or waiting for a stream."""
        return int(self._memory[ACTIVE_BYTES + CURRENT])

    @property
    def active_peak(self) -> int:
        """Largest ``active_bytes`` so far."""
        return int(self._memory[ACTIVE_BYTES + PEAK])

    @property
    def requested_bytes(self) -> int:
        """Bytes that were requested of the active blocks, before rounding."""
        return int(self._memory[REQUESTED_BYTES + CURRENT])

    @property
    def requested_peak(self) -> int:
        """Largest ``requested_bytes`` so far."""
        return int(self._memory[REQUESTED_BYTES + PEAK])

    @property
    def reserved_bytes(self) -> int:
        """Bytes held from the driver."""
        return int(self._memory[RESERVED_BYTES + CURRENT])

    @property
    def reserved_peak(self) -> int:
        """Largest ``reserved_bytes`` so far."""
        return int(self._memory[RESERVED_BYTES + PEAK])

    @property
    def device_peak(self) -> int:
        """Largest physical memory taken so far, in whole device pages."""
        return int(self._memory[CHARGED_PEAK])

    @property
    def device_total(self) -> int:
        """Bytes of the device."""
        return int(self._memory[TOTAL])

    @property
    def device_free(self) -> int:
        """Bytes of the device that nobody holds, as ``cudaMemGetInfo`` tells."""
        return int(device_free(self._memory))

    @property
    def limit_bytes(self) -> int | None:
        """What may be reserved under the memory fraction, or None."""
        limit = int(self._memory[LIMIT])
        return None if limit == NONE else limit

    @property
    def num_alloc_retries(self) -> int:
        """How often cached blocks were released for a request."""
        return int(self._memory[RETRIES])

    @property
    def num_ties(self) -> int:
        """How often the rule among equally large free blocks may have decided; where never, any rule does the same."""
        return int(self._memory[TIES])

    @property
    def num_ooms(self) -> int:
        """How many requests failed."""
        return int(self._memory[OOMS])
