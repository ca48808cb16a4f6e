from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from oomscope.doctor import machine_checks as rooms
from oomscope.doctor.check import Check, State
from oomscope.doctor.machine_checks import gpu_checks
from oomscope.units import GiB

DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Release Build\nGCC version: 12\n"


class NVMLError(Exception):
    pass


def nvml(*used: int, processes: tuple[int, ...] = (), error: Exception | None = None) -> SimpleNamespace:
    """A library that knows cards of 80 GiB with ``used`` bytes taken."""

    def memory(index: int, version: object) -> SimpleNamespace:
        return SimpleNamespace(total=80 * GiB, reserved=GiB, used=used[index])

    def running(index: int) -> list[SimpleNamespace]:
        if error is not None:
            raise error
        return [SimpleNamespace(pid=pid) for pid in processes]

    return SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlMemory_v2=2,
        nvmlDeviceGetCount=lambda: len(used),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda index: "NVIDIA H100",
        nvmlDeviceGetUUID=lambda index: f"GPU-{index}",
        nvmlDeviceGetMemoryInfo=memory,
        nvmlSystemGetDriverVersion=lambda: "570.86.15",
        nvmlDeviceGetComputeRunningProcesses=running,
    )


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    path = tmp_path / "version"
    path.write_text(DRIVER)
    return path


def checked(monkeypatch: pytest.MonkeyPatch, library: object, driver: Path, **environment: str) -> dict[str, Check]:
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.setattr(rooms, "is_deprecated_module", lambda: False)
    return {check.part: check for check in gpu_checks(environment, driver)}


def test_cards(monkeypatch, driver: Path) -> None:
    found = checked(monkeypatch, nvml(0, 5 * GiB, processes=(41, 7)), driver)
    assert found["NVIDIA driver"].found == "NVIDIA UNIX x86_64 Kernel Module 570.86.15 Release Build"
    assert found["NVML"].state is State.OK
    assert found["card 0"].state is State.OK
    assert found["card 0"].found == "NVIDIA H100, 79.00 GiB, 0 B in use"
    assert found["card 1"].state is State.NOTE
    assert found["card 1"].found.endswith("5.00 GiB in use by process 7, 41")
    assert found["card 1"].values["used_bytes"] == 5 * GiB


def test_processes_of_another_container(monkeypatch, driver: Path) -> None:
    for library in (nvml(GiB), nvml(GiB, error=NVMLError("not supported"))):
        card = checked(monkeypatch, library, driver)["card 0"]
        assert card.found.endswith("in use by processes that cannot be seen from here")


def test_no_driver(monkeypatch, tmp_path: Path) -> None:
    library = nvml()

    def fails() -> None:
        raise NVMLError("NVML Shared Library Not Found")

    library.nvmlInit = fails
    found = checked(monkeypatch, library, tmp_path / "none")
    assert list(found) == ["NVIDIA driver", "NVML"]
    assert {check.state for check in found.values()} == {State.MISSING}
    assert "NVML Shared Library Not Found" in found["NVML"].found
    assert found["NVML"].remedy == "see the NVIDIA driver above"


def test_a_driver_without_a_kernel_module_of_its_own(monkeypatch, tmp_path: Path) -> None:
    found = checked(monkeypatch, nvml(0), tmp_path / "none")
    assert (found["NVIDIA driver"].state, found["NVIDIA driver"].found) == (State.OK, "driver 570.86.15")


@pytest.mark.parametrize(
    ("library", "said"),
    [(None, "is not installed"), (SimpleNamespace(NVMLError=NVMLError), "older than what is needed")],
)
def test_a_module_that_cannot_be_used(monkeypatch, driver: Path, library: object, said: str) -> None:
    check = checked(monkeypatch, library, driver)["NVML"]
    assert check.state is State.MISSING
    assert said in check.found
    assert "nvidia-ml-py" in check.remedy


def test_the_deprecated_package_is_told_apart(monkeypatch, tmp_path: Path) -> None:
    assert not rooms.is_deprecated_module()
    (tmp_path / "pynvml").mkdir()
    (tmp_path / "pynvml" / "__init__.py").touch()
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert rooms.is_deprecated_module()


def test_the_deprecated_package_is_a_note_where_it_works(monkeypatch, driver: Path) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml(0))
    monkeypatch.setattr(rooms, "is_deprecated_module", lambda: True)
    found = {check.part: check for check in gpu_checks({}, driver)}
    assert found["NVML"].state is State.NOTE
    assert "pip uninstall pynvml" in found["NVML"].remedy
