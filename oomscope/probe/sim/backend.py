"""Gives torch a device type named ``sim``: one device, with streams, events and random-number state of its own.

Registration is for the life of the process (torch cannot undo it) and does nothing by itself: allocations are
seen only while a session is open. The module that torch and user code reach as ``torch.sim`` is
:class:`SimModule`; it has the functions of ``torch.cuda`` that device-agnostic code calls.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

if TYPE_CHECKING:
    from oomscope.allocator import CachingAllocator

DEVICE_TYPE = "sim"
PRIVATE_USE_1 = 20
"""The device type's number. Source: PyTorch torch/headeronly/core/DeviceType.h."""


class Queue(Protocol):
    """What streams and the memory queries act on: the memory of the open session."""

    allocator: CachingAllocator
    total_bytes: int

    def synchronize(self, stream: int | None) -> None:
        """Complete what is pending on ``stream`` (None: on all)."""
        ...


class SimStream(torch.Stream):
    """A stream of the simulated device. SimStream 0 is the default stream.

    ``torch.Stream("sim")`` cannot be used: the Python device guard hands out id 0 every time.
    """

    _ids: ClassVar[Iterator[int]] = itertools.count(1)

    def __new__(cls, device: Any = None, priority: int = 0, *, stream_id: int | None = None, **_: Any) -> Self:
        """Make a stream; ``device`` and ``priority`` are accepted as ``torch.cuda.Stream`` accepts them."""
        number = next(cls._ids) if stream_id is None else stream_id
        made: Self = super().__new__(
            cls,
            stream_id=number,
            device_index=0,
            device_type=PRIVATE_USE_1,
        )
        return made

    def __init__(self, *_: Any, **__: Any) -> None:
        self._entered: list[SimStream] = []

    def synchronize(self) -> None:
        """Wait for all work on this stream: frees pending on it complete."""
        if module.queue is not None:
            module.queue.synchronize(self.stream_id)

    def query(self) -> bool:
        """Say that all work is done: the simulated device has no clock."""
        return True

    def wait_stream(self, stream: Any) -> None:
        """Order this stream after ``stream``; without a clock there is nothing to wait for."""

    def wait_event(self, event: Any) -> None:
        """Order this stream after ``event``."""

    def record_event(self, event: Any = None) -> Any:
        """Record ``event`` (or a new one) on this stream and return it."""
        event = event or SimEvent()
        event.record(self)
        return event

    def __enter__(self) -> Self:
        self._entered.append(module.current_stream())
        module.set_stream(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        module.set_stream(self._entered.pop())


class SimEvent:
    """An event of the simulated device. It is complete as soon as it was recorded."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._stream: SimStream | None = None

    def record(self, stream: SimStream | None = None) -> None:
        """Record on ``stream``, by default the current one."""
        self._stream = stream or module.current_stream()

    def wait(self, stream: SimStream | None = None) -> None:
        """Order ``stream`` after this event."""

    def query(self) -> bool:
        """Say that the event is complete."""
        return True

    def synchronize(self) -> None:
        """Wait for the event: frees pending on its stream complete."""
        if self._stream is not None:
            self._stream.synchronize()

    def elapsed_time(self, other: SimEvent) -> float:
        """Return 0.0 milliseconds: the simulated device has no clock."""
        return 0.0


class SimModule:
    """``torch.sim``: what torch asks of a backend, and what device-agnostic training code calls."""

    Stream = SimStream
    Event = SimEvent

    def __init__(self) -> None:
        self.queue: Queue | None = None
        self.capability = (9, 0)
        self.name = DEVICE_TYPE
        self._stream: SimStream | None = None
        self._seed = 0
        self._rng_state = torch.zeros(16, dtype=torch.uint8)

    def is_initialized(self) -> bool:
        """Return True."""
        return True

    def is_available(self) -> bool:
        """Return True."""
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def _lazy_init(self) -> None:
        pass

    def device_count(self) -> int:
        """Return 1: one process plays one rank on one card."""
        return 1

    def current_device(self) -> int:
        """Return 0."""
        return 0

    def set_device(self, device: Any) -> None:
        """Accept device 0."""

    def get_device_properties(self, device: Any = None) -> Any:
        """Return an object with ``name`` and ``total_memory`` of the simulated card."""
        from types import SimpleNamespace

        total = self.mem_get_info()[1]
        major, minor = self.capability
        return SimpleNamespace(name=self.name, total_memory=total, major=major, minor=minor)

    def get_device_name(self, device: Any = None) -> str:
        """Return the name of the card that is played."""
        return self.name

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        """Return the card's compute capability."""
        return self.capability

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        """Switch to ``device`` (there is one)."""
        yield

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Return the types that autocast may compute in, as on CUDA."""
        return [torch.float16, torch.bfloat16]

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        """Return True."""
        return True

    # Streams ----------------------------------------------------------------------------------------------

    def default_stream(self, device: Any = None) -> SimStream:
        """Return stream 0."""
        return SimStream(stream_id=0)

    def current_stream(self, device: Any = None) -> SimStream:
        """Return the stream that operations are issued to."""
        if self._stream is None:
            self._stream = self.default_stream()
        return self._stream

    def set_stream(self, stream: SimStream) -> None:
        """Issue operations to ``stream`` from now on."""
        self._stream = stream

    @contextmanager
    def stream(self, stream: SimStream | None) -> Iterator[None]:
        """Issue operations to ``stream`` inside the block; None changes nothing."""
        if stream is None:
            yield
            return
        before = self.current_stream()
        self.set_stream(stream)
        try:
            yield
        finally:
            self.set_stream(before)

    def synchronize(self, device: Any = None) -> None:
        """Wait for all streams: every pending free completes."""
        if self.queue is not None:
            self.queue.synchronize(None)

    # Random numbers: values are never computed, so the state only has to travel ------------------------------

    def manual_seed(self, seed: int) -> None:
        """Take a seed."""
        self._seed = seed

    def manual_seed_all(self, seed: int) -> None:
        """Take a seed."""
        self._seed = seed

    def seed_all(self) -> None:
        """Take no seed from the clock: runs are repeatable."""

    def initial_seed(self) -> int:
        """Return the seed."""
        return self._seed

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        """Return 16 bytes of host memory, as ``torch.cuda.get_rng_state`` does."""
        return self._rng_state.clone()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        """Take back what :meth:`get_rng_state` returned."""
        self._rng_state = state.clone()

    # Memory queries -----------------------------------------------------------------------------------------

    def empty_cache(self) -> None:
        """Release cached segments, as ``torch.cuda.empty_cache`` does."""
        if self.queue is not None:
            self.queue.allocator.empty_cache()

    def memory_allocated(self, device: Any = None) -> int:
        """Return the bytes of blocks in use."""
        return self.queue.allocator.allocated_bytes if self.queue else 0

    def max_memory_allocated(self, device: Any = None) -> int:
        """Return the peak of :meth:`memory_allocated`."""
        return self.queue.allocator.allocated_peak if self.queue else 0

    def memory_reserved(self, device: Any = None) -> int:
        """Return the bytes of segments."""
        return self.queue.allocator.reserved_bytes if self.queue else 0

    def max_memory_reserved(self, device: Any = None) -> int:
        """Return the peak of :meth:`memory_reserved`."""
        return self.queue.allocator.reserved_peak if self.queue else 0

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """Return free and total bytes of the card."""
        if self.queue is None:
            return (0, 0)
        return (self.queue.allocator.device_free, self.queue.total_bytes)


module = SimModule()
_registered = False


def register() -> torch.device:
    """Register the device type once and return the device ``sim:0``."""
    global _registered  # noqa: PLW0603 - torch's registry is process-wide and cannot be asked
    if not _registered:
        _setup_privateuseone_for_python_backend(rename=DEVICE_TYPE, backend_module=module)
        _registered = True
    return torch.device(DEVICE_TYPE, 0)
