"""As much of torch as the captures of the allocator call, before an emulated allocator in the place of a card's own.

With it what was captured is played again: by the same program, on a driver that hands out the recorded addresses.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

from oomscope.allocator import AllocatorEvent, AllocatorSettings, Driver
from tests.caching_allocator import CachingAllocator, DeviceOutOfMemory, sizes_of
from tests.gpu.captures import golden, history

Observer = Callable[[int, int, int, int], None]


class OutOfMemoryError(RuntimeError):
    """The name of what is raised, as in torch."""


@dataclass
class Stream:
    """A stream by its handle; the default one is 0."""

    cuda_stream: int = 0

    def query(self) -> bool:
        """Return whether all that was asked of it is done: never, since what holds it has no end of its own."""
        return False


@dataclass
class Cuda:
    """``torch.cuda``."""

    allocator: CachingAllocator
    torch_version: str
    observers: list[Observer] = field(default_factory=list)
    streams: int = 0
    current: Stream = field(default_factory=Stream)
    trace: list[dict[str, Any]] = field(default_factory=list)
    slept: list[int] = field(default_factory=list)
    fraction: float = 1.0
    _asked: dict[int, tuple[int, int]] = field(default_factory=dict)
    _shared: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.memory = SimpleNamespace(_record_memory_history=lambda **_: None, _snapshot=self.snapshot)

    def init(self) -> None:
        """Do nothing."""

    def current_device(self) -> int:
        """Return the only one."""
        return 0

    def synchronize(self) -> None:
        """Let all streams run."""
        self.allocator.hold_events(False)

    def Stream(self) -> Stream:
        """Return a new stream."""
        self.streams += 1
        return Stream(self.streams)

    def get_device_properties(self, _index: int) -> SimpleNamespace:
        """Return the card."""
        return SimpleNamespace(name="emulated", total_memory=self.allocator.device_total)

    def mem_get_info(self) -> tuple[int, int]:
        """Return free and total bytes."""
        return self.allocator.device_free, self.allocator.device_total

    def set_per_process_memory_fraction(self, fraction: float) -> None:
        """Limit the allocator."""
        self.fraction = fraction
        self.allocator.set_fraction(fraction)

    def get_per_process_memory_fraction(self) -> float:
        """Return the limit."""
        return self.fraction

    def default_stream(self) -> Stream:
        """Return stream 0."""
        return Stream()

    def current_stream(self) -> Stream:
        """Return the stream in force."""
        return self.current

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        """Put another stream in force."""
        before, self.current = self.current, stream
        yield
        self.current = before

    def caching_allocator_alloc(self, size: int, stream: Stream) -> int:
        """Allocate, and record it."""
        try:
            address = self.allocator.malloc(size, stream.cuda_stream).address
        except DeviceOutOfMemory as error:
            self._drain()
            for observer in self.observers:
                observer(0, error.alloc_size, error.allowed or error.device_total, error.device_free)
            raise OutOfMemoryError(str(error)) from None
        self._drain()
        if address:
            self._asked[address] = size, stream.cuda_stream
            self._record("alloc", address, size, stream.cuda_stream)
        return address

    def caching_allocator_delete(self, address: int) -> None:
        """Free, and record it; what another stream uses is complete later, when the allocator sees to it."""
        size, stream = self._asked.pop(address)
        self._record("free_requested", address, size, stream)
        self.allocator.free(address)
        if address in self._shared:
            self._shared.remove(address)
        else:
            self._record("free_completed", address, size, stream)

    def record_stream(self, address: int, stream: int) -> None:
        """Note that a block is used on a stream."""
        self.allocator.record_stream(address, stream)
        if stream != self._asked[address][1]:
            self._shared.add(address)

    def empty_cache(self) -> None:
        """Give back what is cached, and record it before what is asked next."""
        self.allocator.empty_cache()
        self._drain()

    def _sleep(self, cycles: int) -> None:
        self.slept.append(self.current.cuda_stream)
        self.allocator.hold_events(True)

    def memory_stats(self) -> dict[str, int]:
        """Return the statistics in torch's flat form."""
        return dict(_flat(self.allocator.stats()))

    def snapshot(self) -> dict[str, Any]:
        """Return what ``torch.cuda.memory._snapshot`` does, without stacks."""
        self._drain()
        return {
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": self.allocator.settings.conf},
            "device_traces": [list(self.trace)],
            "segments": [self._segment(segment) for segment in self.allocator.segments()],
            "external_annotations": [],
        }

    def _drain(self) -> None:
        for event in self.allocator.drain_events():
            self._record(event.action, event.address, event.size, event.stream, event)

    def _record(self, action: str, address: int, size: int, stream: int, event: AllocatorEvent | None = None) -> None:
        where = "device_free" if action == "oom" else "addr"
        times = {"time_us": len(self.trace), "frames": []}
        self.trace.append({"action": action, where: address, "size": size, "stream": stream, **times})

    @staticmethod
    def _segment(segment: Any) -> dict[str, Any]:
        names = ("address", "total_size", "stream", "segment_type", "is_expandable")
        described = {name: getattr(segment, name) for name in names} | sizes_of(segment)
        blocks = [
            {"address": each.address, "size": each.size, "requested_size": each.requested_size, "state": each.state}
            for each in segment.blocks
        ]
        return {**described, "device": 0, "segment_pool_id": (0, 0), "frames": [], "blocks": blocks}


class Tensor:
    """A block that goes when nothing holds it."""

    def __init__(self, cuda: Cuda, size: int) -> None:
        self._cuda, self._address = cuda, cuda.caching_allocator_alloc(size, cuda.current)

    def data_ptr(self) -> int:
        """Return its address."""
        return self._address

    def record_stream(self, stream: Stream) -> None:
        """Note that it is used on a stream."""
        self._cuda.record_stream(self._address, stream.cuda_stream)

    def __del__(self) -> None:
        if address := getattr(self, "_address", 0):
            self._cuda.caching_allocator_delete(address)


def _flat(values: Any, name: str = "") -> Iterator[tuple[str, int]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{name}{key}.")
        else:
            yield f"{name}{key}", value


def emulated_torch(conf: str, driver: Driver, torch_version: str = "2.11.0") -> SimpleNamespace:
    """Return what stands for the module ``torch`` on a card behind ``driver``."""
    settings = AllocatorSettings.parse(conf, torch_version=torch_version)
    cuda = Cuda(CachingAllocator(settings, driver), torch_version)
    return SimpleNamespace(
        __version__=torch_version,
        cuda=cuda,
        uint8=None,
        Tensor=Tensor,
        OutOfMemoryError=OutOfMemoryError,
        empty=lambda size, **_: Tensor(cuda, size),
        _C=SimpleNamespace(
            _accelerator_setAllocatorSettings=cuda.allocator.set_settings,
            _cuda_attach_out_of_memory_observer=cuda.observers.append,
        ),
    )


@contextlib.contextmanager
def on_card(fake: SimpleNamespace, *modules: ModuleType) -> Iterator[None]:
    """Let ``fake`` be torch to the modules that capture."""
    changed = [(module, module.torch) for module in (golden, history, *modules)]  # type: ignore[attr-defined]
    for module, _ in changed:
        module.torch = fake  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module, real in changed:
            module.torch = real  # type: ignore[attr-defined]
