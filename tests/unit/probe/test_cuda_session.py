"""The order of calls into torch.cuda and what is made of their answers, on a card of paper."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from oomscope.capture import history
from oomscope.errors import MachineUnfitError
from oomscope.probe import cuda
from oomscope.probe.gpus import GPUS
from oomscope.probe.nvml import CardMemory
from oomscope.probe.session import SessionSettings
from oomscope.snapshot.trace import Action, Category, Moment
from oomscope.units import GiB, MiB

TOTAL = 79 * GiB
CONTEXT = 500 * MiB
FOREIGN = 2 * GiB
FRAME = {"filename": "train.py", "line": 3, "name": "step"}


class PaperCard:
    """Stands for torch.cuda, torch.cuda.memory and the driver; keeps a log of what was asked of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.fraction = 1.0
        self.events: list[dict[str, Any]] = []
        self.metadata = ""
        self.used = [FOREIGN, FOREIGN + CONTEXT, FOREIGN + CONTEXT + 2 * GiB]
        self.observer: Any = None
        monkeypatch.setattr(cuda, "read_card", self.read_card)
        monkeypatch.setattr(torch._C, "_cuda_setMemoryMetadata", print, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", self.attach, raising=False)
        monkeypatch.setattr(history, "refusals", history.RefusalObserver())
        properties = SimpleNamespace(name="Paper 80GB", uuid="uuid", total_memory=TOTAL)
        for name, value in {
            "current_device": lambda: 0,
            "get_device_properties": lambda index: properties,
            "get_device_capability": lambda index: (9, 0),
            "synchronize": lambda index: self.log.append("context"),
            "Event": PaperEvent,
            "memory_stats": lambda index: self.stats(),
            "host_memory_stats": lambda: {"allocated_bytes.peak": 7 * MiB},
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        for name, value in {
            "set_per_process_memory_fraction": self.set_fraction,
            "reset_peak_memory_stats": lambda index: None,
            "_record_memory_history": lambda *args, **kwargs: self.log.append(f"record {args[0]} {kwargs}"),
            "_snapshot": self.document,
            "_set_memory_metadata": lambda text: setattr(self, "metadata", text),
        }.items():
            monkeypatch.setattr(torch.cuda.memory, name, value)

    def read_card(self, uuid: str) -> CardMemory:
        return CardMemory(total_bytes=TOTAL, used_bytes=self.used.pop(0), driver_version="570")

    def attach(self, observer: Any) -> None:
        self.observer = observer

    def set_fraction(self, fraction: float, index: int) -> None:
        self.fraction = fraction
        self.log.append(f"fraction {fraction:.3f}")

    def event(self, action: str, **fields: Any) -> None:
        where = {"device_free": 5} if action == "oom" else {"addr": 0x1000}
        self.events.append(
            {"action": action, "size": GiB, "stream": 0, "time_us": 1, "frames": [FRAME], **where, **fields}
            | {"user_metadata": self.metadata}
        )

    def document(self) -> dict[str, Any]:
        block = {"size": GiB, "requested_size": GiB, "address": 0x1000, "state": "active_allocated", "frames": []}
        segment = {
            "device": 0,
            "address": 0x1000,
            "total_size": 2 * GiB,
            "stream": 0,
            "segment_type": "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "blocks": [block, block | {"address": 0x1000 + GiB, "state": "inactive"}],
        }
        return {"segments": [segment], "device_traces": [list(self.events)], "allocator_settings": {}}

    def stats(self) -> dict[str, int]:
        names = ("allocated_bytes", "active_bytes", "reserved_bytes", "requested_bytes")
        numbers = {f"{name}.all.{which}": 2 * GiB for name in names for which in ("peak", "current")}
        return numbers | {"num_alloc_retries": 1, "num_ooms": 1}


class PaperEvent:
    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, end: PaperEvent) -> float:
        return 250.0


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> PaperCard:
    return PaperCard(monkeypatch)


def test_a_run_without_a_limit_uses_the_card_as_it_is(card: PaperCard) -> None:
    session = cuda.CudaSession(SessionSettings(gpu=None, max_entries=100, allocator_conf="x:1"))
    with session, session.iteration(0):
        card.event("segment_alloc", size=2 * GiB)
        card.event("alloc")
    measured = session.measurement()
    assert card.log[0] == "context"
    assert "'context': 'alloc'" in card.log[1]
    assert "'max_entries': 100" in card.log[1]
    assert card.log[2] == "record None {}"
    assert not any("fraction" in line for line in card.log), "a fraction that somebody else set stays"
    assert (measured.device.limit_bytes, measured.device.fraction) == (TOTAL, None)
    assert (measured.device.non_torch_bytes, measured.device.other_process_bytes) == (CONTEXT, FOREIGN)
    assert measured.device.available_bytes == TOTAL - CONTEXT - FOREIGN
    trace = measured.trace
    assert trace.moments[trace.moment_id[1]] == Moment("forward", 0, -1)
    assert measured.step_times_s == (0.25,)
    assert (measured.pinned_bytes, measured.stats.num_alloc_retries) == (7 * MiB, 1)
    assert measured.allocator_conf == "x:1"
    assert measured.versions["driver"] == "570"
    assert (measured.oom, measured.truncated, measured.notes) == (None, False, ())


def test_a_smaller_card_is_played_by_the_fraction(card: PaperCard) -> None:
    session = cuda.CudaSession(SessionSettings(gpu=GPUS["a100-40gb"]))
    with session:
        card.event("alloc")
        budget = session._budget
        assert int(card.fraction * TOTAL) == budget.available_bytes
    assert card.fraction == 1.0, "put back"
    assert budget.limit_bytes == GPUS["a100-40gb"].total_bytes
    assert budget.card_bytes == TOTAL


def test_a_failure_is_kept_as_it_stood(card: PaperCard) -> None:
    def step() -> None:
        card.event("alloc")
        card.event("oom", size=3 * GiB)
        card.observer(0, 3 * GiB, TOTAL, 5)
        card.event("free_requested")
        card.event("free_completed")
        raise torch.OutOfMemoryError

    session = cuda.CudaSession(SessionSettings(gpu=None, limit_bytes=10 * GiB))
    with pytest.raises(torch.OutOfMemoryError), session, session.iteration(1):
        step()
    card.observer(0, 9 * GiB, TOTAL, 5)
    failed = session.measurement().oom
    assert (failed.requested_bytes, failed.event, failed.device_free_bytes) == (3 * GiB, 1, 5)
    assert failed.moment == Moment("forward", 1, -1)
    assert failed.stack[0].filename == "train.py"
    assert failed.segments[0].allocated_size == GiB
    assert session.measurement().trace.action[failed.event] == Action.OOM


def test_what_was_told_of_an_address_becomes_its_category(card: PaperCard) -> None:
    session = cuda.CudaSession(SessionSettings(gpu=None))
    storage = SimpleNamespace(data_ptr=lambda: 0x1000)
    tensor = SimpleNamespace(device=SimpleNamespace(type="cuda"), untyped_storage=lambda: storage)
    with session:
        card.event("alloc")
        session.observer.role("main_gradient", [tensor])
    assert session.measurement().trace.category[0] == Category.MAIN_GRADIENT


def test_a_ring_that_is_full_may_have_wrapped(card: PaperCard) -> None:
    session = cuda.CudaSession(SessionSettings(gpu=None, max_entries=1))
    with session:
        card.event("alloc")
    assert session.measurement().truncated


def test_growth_outside_the_allocator_is_noted(card: PaperCard) -> None:
    card.used[2] += GiB
    session = cuda.CudaSession(SessionSettings(gpu=None))
    with session:
        card.event("alloc")
    assert "outside the allocator changed by +1.00 GiB" in session.measurement().notes[0]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (SessionSettings(gpu=GPUS["b200"]), "--gpu"),
        (SessionSettings(gpu=None, limit_bytes=80 * GiB), "--limit"),
    ],
)
def test_a_card_larger_than_the_one_there_is_refused(card: PaperCard, settings: SessionSettings, said: str) -> None:
    with pytest.raises(MachineUnfitError, match=said), cuda.CudaSession(settings):
        pass


def test_a_card_that_others_fill_is_unfit(card: PaperCard) -> None:
    card.used = [TOTAL, TOTAL]
    with pytest.raises(MachineUnfitError, match="other processes hold 79"):
        cuda.CudaSession(SessionSettings(gpu=None)).__enter__()


def test_a_run_without_end_is_only_for_the_simulated_device() -> None:
    with pytest.raises(MachineUnfitError, match="only be simulated"):
        cuda.CudaSession(SessionSettings(gpu=None, unlimited=True))
