"""The driver's readings of a card's memory."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from oomscope.errors import MachineUnfitError
from oomscope.probe.machine.nvml import CardMemory, read_card
from oomscope.units import GiB, MiB


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
