"""What of the CUDA backend can be tested without a GPU: the arithmetic, the phases, the driver's readings."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oomscope.errors import MachineUnfitError
from oomscope.probe.cuda import fraction_for, last_oom, stats_of, unseen_change
from oomscope.probe.cuda_observer import CudaObserver
from oomscope.probe.nvml import CardMemory, read_card
from oomscope.snapshot.builder import TraceBuilder
from oomscope.snapshot.trace import Action, Frame, Moment, Snapshot
from oomscope.units import GiB, MiB


@given(st.integers(1, 300 * GiB).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total))))
def test_the_fraction_allows_exactly_what_is_available(sizes: tuple[int, int]) -> None:
    available, total = sizes
    fraction = fraction_for(available, total)
    assert 0 <= fraction <= 1
    assert int(fraction * float(total)) == available


def test_the_counters_are_torchs() -> None:
    names = ("allocated_bytes", "active_bytes", "reserved_bytes", "requested_bytes")
    counters = {f"{name}.all.{which}": 10 * i for i, name in enumerate(names) for which in ("peak", "current")}
    stats = stats_of(counters | {"num_alloc_retries": 2, "num_ooms": 1, "inactive_split.all.peak": 9})
    assert (stats.allocated_bytes_peak, stats.active_bytes_peak, stats.reserved_bytes_peak) == (0, 10, 20)
    assert (stats.requested_bytes_peak, stats.num_alloc_retries, stats.num_ooms) == (30, 2, 1)


def test_the_last_failure_of_the_device_is_found() -> None:
    traces = []
    for device in (0, 1):
        builder = TraceBuilder(device)
        for line in (1, 2):
            builder.event(Action.ALLOC, 0x100 * line, 512)
            builder.event(Action.OOM, 0, 512, stack=(Frame("train.py", 10 * device + line, "step"),))
        traces.append(builder.build())
    snapshot = Snapshot(segments=(), traces=tuple(traces))
    assert last_oom(snapshot, 1) == (3, (Frame("train.py", 12, "step"),))
    assert last_oom(snapshot, 2) == (None, ())


def card(used: int) -> CardMemory:
    return CardMemory(total_bytes=80 * GiB, used_bytes=used, driver_version="570")


def test_memory_that_torch_does_not_see_is_noted_when_it_moves() -> None:
    assert list(unseen_change(card(GiB), card(9 * GiB), 8 * GiB)) == []
    assert list(unseen_change(card(GiB), card(9 * GiB + MiB), 8 * GiB)) == []
    (grown,) = unseen_change(card(GiB), card(11 * GiB), 8 * GiB)
    assert "+2.00 GiB" in grown
    (shrunk,) = unseen_change(card(4 * GiB), card(9 * GiB), 8 * GiB)
    assert "-3.00 GiB" in shrunk


class FakeNVMLError(Exception):
    pass


@pytest.fixture
def driver(monkeypatch) -> SimpleNamespace:
    asked: list[str] = []
    memory = SimpleNamespace(total=81559 * MiB, reserved=500 * MiB, used=3 * GiB)

    def handle(uuid: str) -> str:
        if "unknown" in uuid:
            raise FakeNVMLError("Not Found")
        asked.append(uuid)
        return uuid

    fake = SimpleNamespace(
        NVMLError=FakeNVMLError,
        nvmlInit=lambda: asked.append("init"),
        nvmlShutdown=lambda: asked.append("shutdown"),
        nvmlMemory_v2=2,
        nvmlDeviceGetHandleByUUID=handle,
        nvmlDeviceGetMemoryInfo=lambda handle, version: memory,
        nvmlSystemGetDriverVersion=lambda: "570.1",
        asked=asked,
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_a_card_is_read_by_its_uuid(driver: SimpleNamespace) -> None:
    reading = read_card("1234")
    assert reading == CardMemory(total_bytes=81059 * MiB, used_bytes=3 * GiB, driver_version="570.1")
    assert reading.free_bytes == 81059 * MiB - 3 * GiB
    assert driver.asked == ["init", "GPU-1234", "shutdown"]


def test_a_driver_that_cannot_be_asked_makes_the_machine_unfit(driver: SimpleNamespace) -> None:
    with pytest.raises(MachineUnfitError, match="Not Found"):
        read_card("unknown")
    assert driver.asked == ["init", "shutdown"]


@pytest.fixture
def moments() -> list[Moment]:
    return []


@pytest.fixture
def observer(moments: list[Moment]) -> CudaObserver:
    def note(text: str) -> None:
        said = json.loads(text)
        moments.append(Moment(said["phase"], said.get("iter", -1), said.get("mb", -1)))

    return CudaObserver(note)


def test_phases_nest_and_the_innermost_wins(observer: CudaObserver, moments: list[Moment]) -> None:
    with observer.phase("forward", iteration=3, microbatch=1), observer.phase("loss"):
        assert observer.moment == Moment("loss", 3, 1)
    assert moments == [
        Moment("forward", 3, 1),
        Moment("loss", 3, 1),
        Moment("forward", 3, 1),
        Moment("init", -1, -1),
    ]


def test_a_program_that_tells_nothing_is_followed(observer: CudaObserver, moments: list[Moment]) -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    before = torch.autograd._engine_run_backward
    with observer.following(), observer.phase("forward", iteration=0):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    assert [moment.phase for moment in moments] == ["forward", "backward", "forward", "optimizer", "forward", "init"]
    assert torch.autograd._engine_run_backward is before is torch.autograd.graph._engine_run_backward


def test_a_program_that_tells_backward_is_not_told_over(observer: CudaObserver, moments: list[Moment]) -> None:
    parameter = torch.ones(2, requires_grad=True)
    with observer.following(), observer.phase("backward", iteration=0, microbatch=2):
        parameter.sum().backward()
    assert moments == [Moment("backward", 0, 2), Moment("init", -1, -1)]


def test_a_failed_step_leaves_no_phase_behind(observer: CudaObserver) -> None:
    class Failing(torch.optim.SGD):
        def _init_group(self, *_):
            raise RuntimeError("out of memory")

    parameter = torch.ones(2, requires_grad=True)
    parameter.grad = torch.ones(2)
    optimizer = Failing([parameter], lr=0.1)
    with observer.following():
        with pytest.raises(RuntimeError, match="out of memory"), observer.phase("forward", iteration=0):
            optimizer.step()
        assert observer.moment == Moment("init", -1, -1)


def test_only_storages_on_the_card_are_remembered(observer: CudaObserver) -> None:
    observer.role("parameter", [torch.ones(2)])
    observer.watch([torch.nn.Linear(2, 2)], [])
    assert observer.told == ()
