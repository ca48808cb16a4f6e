"""The player of recorded traces, before an emulated allocator in the place of the card's own."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from oomscope.allocator import AllocatorSettings, CachingAllocator, DeviceOutOfMemory, Driver
from oomscope.units import MiB
from tests.conformance.allocator_golden import records
from tests.conftest import ROOT
from tests.gpu.captures import golden

TOTAL = 80 << 30


class OutOfMemoryError(RuntimeError):
    pass


@dataclass
class Stream:
    cuda_stream: int = 0

    def query(self) -> bool:
        return False


@dataclass
class Cuda:
    """As much of ``torch.cuda`` as the player calls."""

    allocator: CachingAllocator
    streams: int = 0
    current: Stream = field(default_factory=Stream)
    trace: list[dict[str, Any]] = field(default_factory=list)
    slept: list[int] = field(default_factory=list)
    settings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.memory = SimpleNamespace(_record_memory_history=lambda **_: None, _snapshot=self.snapshot)

    def init(self) -> None: ...

    def synchronize(self) -> None:
        self.allocator.hold_events(False)

    def Stream(self) -> Stream:
        self.streams += 1
        return Stream(self.streams)

    def get_device_properties(self, _index: int) -> SimpleNamespace:
        return SimpleNamespace(total_memory=TOTAL)

    def mem_get_info(self) -> tuple[int, int]:
        return TOTAL, TOTAL

    def set_per_process_memory_fraction(self, fraction: float) -> None:
        self.allocator.set_fraction(fraction)

    def default_stream(self) -> Stream:
        return Stream()

    def current_stream(self) -> Stream:
        return self.current

    @contextlib.contextmanager
    def stream(self, stream: Stream):
        before, self.current = self.current, stream
        yield
        self.current = before

    def caching_allocator_alloc(self, size: int, stream: Stream) -> int:
        try:
            return self.allocator.malloc(size, stream.cuda_stream).address
        except DeviceOutOfMemory:
            raise OutOfMemoryError from None

    def caching_allocator_delete(self, address: int) -> None:
        self.allocator.free(address)

    def empty_cache(self) -> None:
        self.allocator.empty_cache()

    def _sleep(self, cycles: int) -> None:
        self.slept.append(self.current.cuda_stream)
        self.allocator.hold_events(True)

    def memory_stats(self) -> dict[str, int]:
        return {"reserved": self.allocator.reserved_bytes}

    def snapshot(self) -> dict[str, Any]:
        for event in self.allocator.drain_events():
            self.trace.append(
                {"action": event.action, "addr": event.address, "size": event.size, "stream": event.stream}
            )
        return {"allocator_settings": {}, "device_traces": [self.trace], "segments": []}


class Tensor:
    """A block that goes when nothing holds it."""

    def __init__(self, cuda: Cuda, size: int) -> None:
        self._cuda, self._address = cuda, cuda.caching_allocator_alloc(size, cuda.current)

    def data_ptr(self) -> int:
        return self._address

    def record_stream(self, stream: Stream) -> None:
        self._cuda.allocator.record_stream(self._address, stream.cuda_stream)

    def __del__(self) -> None:
        if address := getattr(self, "_address", 0):
            self._cuda.caching_allocator_delete(address)


def played(monkeypatch: pytest.MonkeyPatch, record: dict[str, Any]) -> tuple[dict[str, Any], Cuda]:
    cuda = Cuda(CachingAllocator(AllocatorSettings.parse(record["conf"], torch_version="2.11.0"), Driver(TOTAL)))
    fake = SimpleNamespace(
        cuda=cuda,
        uint8=None,
        Tensor=Tensor,
        OutOfMemoryError=OutOfMemoryError,
        empty=lambda size, **_: Tensor(cuda, size),
        _C=SimpleNamespace(_accelerator_setAllocatorSettings=cuda.allocator.set_settings),
    )
    monkeypatch.setattr(golden, "torch", fake)
    return golden.play({"record": record}), cuda


def recorded(family: str) -> list[dict[str, Any]]:
    found = list(records(ROOT / "fixtures" / "allocator-golden" / f"{family}.jsonl.gz"))
    assert found
    return found


def stood_for(record: dict[str, Any]) -> bool:
    """Whether a fraction of a larger card is the very same to ``record``: not where it alone turns something on."""
    by_fraction = "garbage" in record["conf"] and record["fraction"] is None
    partly_mapped = "expandable" in record["conf"] and record["expected"]["num_alloc_retries"] > 0
    by_setting = "per_process_memory_fraction" in record["conf"]
    return not (by_fraction or partly_mapped or by_setting) and "2.11.0" in record["identical_on"]


@pytest.mark.parametrize("record", [*filter(stood_for, recorded("records"))], ids=lambda record: record["name"])
def test_the_fraction_stands_for_the_device_of_the_record(monkeypatch, record):
    given, _ = played(monkeypatch, record)
    trace = given["trace"]
    events = [event for event in zip(trace["action"], trace["size"], strict=True) if event[0] != "free_completed"]
    assert events == [(event[1], event[4]) for event in record["expected"]["events"]]
    assert [bool(place) for place in given["placements"]] == [bool(place) for place in record["expected"]["placements"]]


def test_what_others_take_lowers_the_limit(monkeypatch):
    ops = [["m", 1, 30 * MiB], ["o", 40 * MiB], ["m", 2, 40 * MiB], ["f", 1], ["f", 2], ["o", 0], ["m", 3, 70 * MiB]]
    record = {"name": "o", "conf": "", "total_bytes": 100 * MiB, "other_bytes": 0, "fraction": None, "ops": ops}
    given, _ = played(monkeypatch, record)
    assert given["ooms"] == [2]
    assert given["limit_bytes"] == [100 * MiB, 60 * MiB, 100 * MiB]


def test_streams_that_are_not_ready_are_kept_busy(monkeypatch):
    ops = [["m", 1, MiB], ["r", 1, 2], ["p", 1], ["f", 1], ["s"], ["p", 0], ["e"]]
    record = {"name": "p", "conf": "", "total_bytes": 100 * MiB, "other_bytes": 0, "fraction": None, "ops": ops}
    given, cuda = played(monkeypatch, record)
    assert cuda.slept == [0, 1, 2]
    assert given["streams"] == [0, 1, 2]
    assert given["holds"] == [{"op": 2, "until": 5, "outlasted": True}]
    assert given["markers"] == [{"op": 4, "stats": {"reserved": 2 * MiB}}]


def test_an_operation_of_an_unknown_kind_is_refused(monkeypatch):
    record = {"name": "q", "conf": "", "total_bytes": MiB, "other_bytes": 0, "fraction": None, "ops": [["q"]]}
    with pytest.raises(ValueError, match="operation 0 is of an unknown kind: 'q'"):
        played(monkeypatch, record)
