"""An allocator of paper: what torch.cuda would be asked, and what it would answer, without a card."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from oomscope.capture import history, singleton
from oomscope.units import GiB

FRAME = {"filename": "train.py", "line": 3, "name": "step"}


class PaperAllocator:
    """Stands for torch.cuda; CUDA is in use once :meth:`initialise` was called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.events: list[dict[str, Any]] = []
        self.metadata = ""
        self.recording = False
        self.initialised = False
        self.queue: list[Callable[[], None]] = []
        self.observers: list[Any] = []
        self.broken: Exception | None = None
        monkeypatch.setattr(history, "refusals", history.RefusalObserver())
        monkeypatch.setattr(singleton, "_owner", [])
        for place, names in (
            (
                torch._C,
                {
                    "_cuda_setMemoryMetadata": None,
                    "_cuda_isHistoryEnabled": lambda: self.recording,
                    "_cuda_attach_out_of_memory_observer": self.observers.append,
                },
            ),
            (
                torch.cuda,
                {
                    "is_available": lambda: True,
                    "is_initialized": lambda: self.initialised,
                    "_lazy_call": self.queue.append,
                    "mem_get_info": lambda index: (2 * GiB, 80 * GiB),
                    "get_device_name": lambda index: "Paper 80GB",
                    "get_per_process_memory_fraction": lambda index: 0.5,
                },
            ),
            (
                torch.cuda.memory,
                {
                    "_record_memory_history": self.record,
                    "_snapshot": self.document,
                    "_set_memory_metadata": lambda text: setattr(self, "metadata", text),
                    "_get_memory_metadata": lambda: self.metadata,
                },
            ),
        ):
            for name, value in names.items():
                monkeypatch.setattr(place, name, value, raising=False)

    def initialise(self) -> None:
        """Use CUDA for the first time."""
        for call in self.queue:
            call()
        self.initialised = True

    def record(self, enabled: str | None, **settings: Any) -> None:
        self.recording = enabled is not None
        self.log.append(f"record {enabled} {settings}" if enabled else "stop")

    def alloc(self, size: int = GiB) -> None:
        self.event("alloc", size=size, addr=0x1000)

    def event(self, action: str, **fields: Any) -> None:
        self.events.append(
            {"action": action, "stream": 0, "time_us": 1, "frames": [FRAME], "user_metadata": self.metadata} | fields
        )

    def fail(self, size: int = 3 * GiB) -> None:
        """Refuse a request, as torch does: the event, the observers, then the error."""
        self.event("oom", size=size, device_free=5)
        for observer in self.observers:
            observer(0, size, 40 * GiB, 2 * GiB)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB.")

    def document(self) -> dict[str, Any]:
        if self.broken is not None:
            raise self.broken
        block = {"size": GiB, "requested_size": GiB, "address": 0x1000, "state": "active_allocated", "frames": []}
        segment = {
            "device": 0,
            "address": 0x1000,
            "total_size": GiB,
            "stream": 0,
            "segment_type": "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "blocks": [block],
        }
        return {"segments": [segment], "device_traces": [list(self.events)], "allocator_settings": {}}


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> PaperAllocator:
    """A card of paper, not in use yet."""
    return PaperAllocator(monkeypatch)


@pytest.fixture(autouse=True)
def _own_process(monkeypatch: pytest.MonkeyPatch, tmp_path) -> Any:
    """Run each test in a folder of its own, with no rank, and put the handler of SIGTERM back."""
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "OOMSCOPE_PROBE"):
        monkeypatch.delenv(name, raising=False)
    handler = signal.getsignal(signal.SIGTERM)
    yield SimpleNamespace(handler=handler)
    signal.signal(signal.SIGTERM, handler)
