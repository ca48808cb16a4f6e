"""The order of calls into torch.cuda and what is made of their answers, on a card of paper."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from oomscope.capture import history
from oomscope.probe.measurement import DeviceBudget
from oomscope.probe.recording.recorded_session import RecordedSession
from oomscope.probe.recording.session import SessionSettings
from oomscope.snapshot.trace import Action, Category, Moment
from oomscope.units import GiB, MiB

TOTAL = 79 * GiB
BUDGET = DeviceBudget(gpu="paper", limit_bytes=TOTAL, non_torch_bytes=GiB, other_process_bytes=0)
FRAME = {"filename": "train.py", "line": 3, "name": "step"}


class PaperCard:
    """Stands for the card, torch.cuda and torch.cuda.memory; keeps a log of what was asked of it."""

    has_clock = True

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.events: list[dict[str, Any]] = []
        self.metadata = ""
        self.fraction = 1.0
        self.conf = ""
        self.observer: Any = None
        monkeypatch.setattr(torch._C, "_cuda_setMemoryMetadata", print, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", self.attach, raising=False)
        monkeypatch.setattr(history, "refusals", history.RefusalObserver())
        monkeypatch.setattr(history, "allocations", lambda index: sum(e["action"] == "alloc" for e in self.events))
        for name, value in {
            "synchronize": lambda index: self.log.append("synchronize"),
            "Event": PaperEvent,
            "memory_stats": lambda index: self.stats(),
            "get_per_process_memory_fraction": lambda index: self.fraction,
            "host_memory_stats": lambda: {"allocated_bytes.peak": 7 * MiB},
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        for name, value in {
            "reset_peak_memory_stats": lambda index: None,
            "_record_memory_history": lambda *args, **kwargs: self.log.append(f"record {args[0]} {kwargs}"),
            "_snapshot": self.document,
            "_set_memory_metadata": lambda text: setattr(self, "metadata", text),
        }.items():
            monkeypatch.setattr(torch.cuda.memory, name, value)

    def begin(self, index: int) -> DeviceBudget:
        self.log.append("begin")
        return BUDGET

    def end(self, reserved_bytes: int) -> tuple[str, ...]:
        return (f"{reserved_bytes} reserved",)

    def versions(self) -> dict[str, str]:
        return {"driver": "570"}

    def attach(self, observer: Any) -> None:
        self.observer = observer

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
        settings = {"PYTORCH_CUDA_ALLOC_CONF": self.conf}
        return {"segments": [segment], "device_traces": [list(self.events)], "allocator_settings": settings}

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


def session_on(card: PaperCard, **settings: Any) -> RecordedSession:
    return RecordedSession(SessionSettings(gpu=None, **settings), card)


def test_what_is_recorded_becomes_the_measurement(card: PaperCard) -> None:
    card.conf = "x:1"
    session = session_on(card, max_entries=100, allocator_conf="x:1")
    with session, session.iteration(0):
        card.event("segment_alloc", size=2 * GiB)
        card.event("alloc")
    measured = session.measurement()
    assert card.log[0] == "begin"
    assert "'context': 'alloc'" in card.log[1]
    assert "'max_entries': 100" in card.log[1]
    assert card.log[2:] == ["synchronize", "record None {}"], "nothing is pending when the history is read"
    assert measured.device == BUDGET
    trace = measured.trace
    assert trace.moments[trace.moment_id[1]] == Moment("forward", 0, 0)
    assert measured.step_times_s == (0.25,)
    assert (measured.pinned_bytes, measured.stats.num_alloc_retries) == (7 * MiB, 1)
    assert measured.allocator_conf == "x:1"
    assert measured.versions["driver"] == "570"
    assert (measured.oom, measured.truncated, measured.notes) == (None, False, (f"{2 * GiB} reserved",))


def test_a_card_without_a_clock_tells_no_times(card: PaperCard) -> None:
    card.has_clock = False
    session = session_on(card)
    with session, session.iteration(0):
        card.event("alloc")
    assert session.measurement().step_times_s == ()


def test_the_phase_before_the_first_iteration_is_told(card: PaperCard) -> None:
    with session_on(card) as session:
        card.event("alloc")
    trace = session.measurement().trace
    assert trace.moments[trace.moment_id[0]] == Moment("init", -1, -1)


def test_settings_of_the_target_itself_stand_and_are_said(card: PaperCard) -> None:
    card.conf = "expandable_segments:True"
    with session_on(card, allocator_conf="max_split_size_mb:64") as session:
        card.event("alloc")
    measured = session.measurement()
    assert measured.allocator_conf == "expandable_segments:True"
    assert "the target itself sets its allocator to expandable_segments:True" in measured.notes[-1]


def test_a_failure_is_kept_as_it_stood(card: PaperCard) -> None:
    def step() -> None:
        card.event("alloc")
        card.event("oom", size=3 * GiB)
        card.observer(0, 3 * GiB + 2 * MiB, TOTAL, 5)  # the piece that was asked of the driver
        card.event("free_requested")
        card.event("free_completed")
        raise torch.OutOfMemoryError

    session = session_on(card)
    with pytest.raises(torch.OutOfMemoryError), session, session.iteration(1):
        step()
    card.observer(0, 9 * GiB, TOTAL, 5)
    failed = session.measurement().oom
    assert failed is not None
    assert (failed.requested_bytes, failed.event, failed.device_free_bytes) == (3 * GiB, 1, 5)
    assert failed.moment == Moment("forward", 1, 0)
    assert failed.stack[0].filename == "train.py"
    assert failed.segments[0].allocated_size == GiB
    assert session.measurement().trace.action[failed.event] == Action.OOM


def test_without_recording_the_counters_and_the_failure_are_told(card: PaperCard) -> None:
    def step() -> None:
        card.observer(0, 3 * GiB, TOTAL, 5)
        raise torch.OutOfMemoryError

    card.conf = "x:1"
    session = session_on(card, is_recorded=False, allocator_conf="x:1")
    with pytest.raises(torch.OutOfMemoryError), session, session.iteration(1):
        step()
    assert card.log == ["begin", "synchronize", "record None {}"]
    measured = session.measurement()
    assert (len(measured.trace), measured.truncated, measured.allocator_conf) == (0, False, "x:1")
    assert measured.stats.reserved_bytes_peak == 2 * GiB
    assert measured.oom is not None
    assert (measured.oom.requested_bytes, measured.oom.event) == (3 * GiB, None)
    assert measured.oom.moment == Moment("forward", 1, 0)


def test_a_fraction_that_the_program_set_is_part_of_what_it_may_use(card: PaperCard) -> None:
    with session_on(card) as session:
        card.fraction = 0.5
    device = session.measurement().device
    assert (device.own_fraction, device.available_bytes) == (0.5, TOTAL // 2)
    played = replace(BUDGET, card_bytes=2 * TOTAL, fraction=0.4)
    assert (played.under(0.5), played.own_fraction, played.available_bytes) == (played, None, TOTAL - GiB)
    assert BUDGET.under(1.0) == BUDGET
    assert BUDGET.under(0.999).available_bytes == TOTAL - GiB, "others leave less than the fraction"


def test_what_was_told_of_an_address_becomes_its_category(card: PaperCard, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = SimpleNamespace(data_ptr=lambda: 0x1000)
    tensor = SimpleNamespace(device=SimpleNamespace(type="cuda"), untyped_storage=lambda: storage)
    with session_on(card) as session:
        card.event("alloc")
        with monkeypatch.context() as patched:
            patched.setattr("oomscope.probe.recording.blocks.torch.Tensor", SimpleNamespace)
            session.observer.role("main_gradient", [tensor])
    assert session.measurement().trace.category[0] == Category.MAIN_GRADIENT


def test_a_ring_that_is_full_may_have_wrapped(card: PaperCard) -> None:
    with session_on(card, max_entries=1) as session:
        card.event("alloc")
    assert session.measurement().truncated
