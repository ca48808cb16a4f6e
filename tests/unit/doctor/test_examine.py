"""Cards, allocator settings, git, directories, host and packages, each as it can be found on some machine."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from oomscope.doctor import examine
from oomscope.doctor.check import Check, Diagnosis, State
from oomscope.errors import ExitCode
from oomscope.units import GiB, KiB

OLD, NEW = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Release Build\nGCC version: 12\n"


class NVMLError(Exception):
    pass


def nvml(*used: int, processes: tuple[int, ...] = (), error: Exception | None = None) -> SimpleNamespace:
    """A library that knows cards of 80 GiB with ``used`` bytes taken; ``error`` is raised when it starts."""

    def init() -> None:
        if error is not None:
            raise error

    return SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=init,
        nvmlShutdown=lambda: None,
        nvmlMemory_v2=2,
        nvmlDeviceGetCount=lambda: len(used),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda index: "NVIDIA H100",
        nvmlDeviceGetUUID=lambda index: f"GPU-{index}",
        nvmlDeviceGetMemoryInfo=lambda index, version: SimpleNamespace(total=80 * GiB, reserved=GiB, used=used[index]),
        nvmlSystemGetDriverVersion=lambda: "570.86.15",
        nvmlDeviceGetComputeRunningProcesses=lambda index: [SimpleNamespace(pid=pid) for pid in processes],
    )


def cards(monkeypatch: pytest.MonkeyPatch, library: object, driver: Path) -> dict[str, Check]:
    monkeypatch.setitem(sys.modules, "pynvml", library)
    return {check.part: check for check in examine.gpu_checks({}, driver)}


def test_cards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "version").write_text(DRIVER)
    found = cards(monkeypatch, nvml(0, 5 * GiB, processes=(41, 7)), tmp_path / "version")
    assert found["NVIDIA driver"].found == "NVIDIA UNIX x86_64 Kernel Module 570.86.15 Release Build"
    assert found["NVML"].state is State.OK
    assert (found["card 0"].state, found["card 0"].found) == (State.OK, "NVIDIA H100, 79.00 GiB, 0 B in use")
    assert found["card 1"].state is State.NOTE
    assert found["card 1"].found.endswith("5.00 GiB in use by process 7, 41")
    assert found["card 1"].values["used_bytes"] == 5 * GiB
    hidden = cards(monkeypatch, nvml(GiB), tmp_path / "version")["card 0"]
    assert hidden.found.endswith("in use by processes not visible from here")


def test_no_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = cards(monkeypatch, nvml(error=NVMLError("NVML Shared Library Not Found")), tmp_path / "none")
    assert {part: check.state for part, check in found.items()} == dict.fromkeys(
        ["NVIDIA driver", "NVML"], State.MISSING
    )
    assert "NVML Shared Library Not Found" in found["NVML"].found
    assert found["NVML"].remedy == "see the NVIDIA driver above"


@pytest.mark.parametrize(
    ("library", "said"),
    [(None, "is not installed"), (SimpleNamespace(NVMLError=NVMLError), "is too old")],
)
def test_an_nvml_module_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, library: object, said: str
) -> None:
    check = cards(monkeypatch, library, tmp_path / "none")["NVML"]
    assert check.state is State.MISSING
    assert said in check.found


def test_the_deprecated_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert not examine.is_deprecated_module()
    (tmp_path / "pynvml").mkdir()
    (tmp_path / "pynvml" / "__init__.py").touch()
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert examine.is_deprecated_module()
    check = {check.part: check for check in examine.gpu_checks({}, tmp_path / "none")}["NVML"]
    assert "pip uninstall pynvml" in check.remedy


def settings(**environment: str) -> list[tuple[State, str]]:
    return [(check.state, check.found) for check in examine.allocator_checks(environment, "2.13.0+cpu")]


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, [(State.OK, "the defaults: no variable is set")]),
        ({NEW: "expandable_segments:True"}, [(State.OK, f"{NEW}=expandable_segments:True")]),
        (
            {NEW: "expandable_segments:True", OLD: "max_split_size_mb:64"},
            [(State.OK, f"{OLD}=max_split_size_mb:64"), (State.NOTE, f"{NEW} is ignored")],
        ),
        (
            {NEW: "expandable_segments:True", OLD: ""},
            [(State.OK, f"the defaults: {OLD} is empty"), (State.NOTE, f"{NEW} is ignored")],
        ),
        (
            {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
            [
                (State.OK, "the defaults: no variable is set"),
                (State.NOTE, "PYTORCH_NO_CUDA_MEMORY_CACHING is set"),
            ],
        ),
    ],
)
def test_allocator_settings_in_force(environment: dict[str, str], found: list[tuple[State, str]]) -> None:
    assert settings(**environment) == found


@pytest.mark.parametrize(
    ("conf", "version", "said"),
    [
        ("expandable_segment:True", "2.13", "Unrecognized key 'expandable_segment'"),
        ("max_split_size_mb:1", "2.13", "too small"),
        ("backend:cudaMallocAsync", "2.13", "cannot be modelled"),
        ("large_segment_size_mb:32", "2.9.0", "large_segment_size_mb"),
    ],
)
def test_allocator_settings_that_a_probe_would_refuse(conf: str, version: str, said: str) -> None:
    (check,) = examine.allocator_checks({NEW: conf}, version)
    assert check.state is State.FAILS
    assert said in check.found
    assert check.disables
    assert check.remedy


DISTRUSTS = """case $1 in
    --version) echo git version 2.39.5;;
    *) echo "fatal: detected dubious ownership in repository at '/srv/it is theirs'" >&2; exit 128
esac"""


@pytest.mark.parametrize(
    ("script", "states", "found"),
    [
        ("echo git version 2.53.0.windows.1", [State.OK], "git 2.53.0"),
        ("echo git version 2.30.2", [State.MISSING], "git 2.30.2"),
        (None, [State.MISSING], "there is no git on PATH"),
        ("echo xcrun: error >&2; exit 1", [State.MISSING], "git does not run: xcrun: error"),
        (DISTRUSTS, [State.OK, State.NOTE], "git 2.39.5"),
    ],
)
def test_git(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str | None, states: list[State], found: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if script is not None:
        (tmp_path / "git").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "git").chmod(0o755)
    checks = list(examine.git_checks(tmp_path))
    assert [check.state for check in checks] == states
    assert checks[0].found == found
    assert all(check.disables and check.remedy for check in checks if check.state is not State.OK)
    if script is DISTRUSTS:
        assert checks[1].remedy == "git config --global --add safe.directory '/srv/it is theirs'"


def places(tmp_path: Path) -> dict[str, Check]:
    given = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "XDG_STATE_HOME": str(tmp_path / "state")}
    return {check.part: check for check in examine.place_checks(given)}


def test_checking_directories_makes_none(tmp_path: Path) -> None:
    found = places(tmp_path)
    assert [check.state for check in found.values()] == [State.OK] * 3
    assert "not made yet" in found["cache"].found
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_file", [True, False])
def test_a_directory_that_may_not_be_written_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_file: bool) -> None:
    if is_file:
        (tmp_path / "cache").touch()
    else:
        monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    check = places(tmp_path)["cache"]
    assert check.state is State.MISSING
    assert check.remedy == "set XDG_CACHE_HOME to a directory that may be written to"


def test_no_home_and_no_place_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    def none() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(Path, "home", nowhere)
    monkeypatch.setattr(examine.tempfile, "gettempdir", none)
    home, temporary = examine.place_checks({})
    assert (home.state, home.found) == (State.MISSING, "there is no home directory")
    assert temporary.state is State.FAILS


def test_free_memory_is_the_least_of_host_and_container(tmp_path: Path) -> None:
    files = meminfo, limit, used = tmp_path / "meminfo", tmp_path / "limit", tmp_path / "used"
    assert examine.host_check(*files).values["free_bytes"] is None
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:  5000 kB\n")
    limit.write_text("max\n")
    used.write_text("1000\n")
    assert examine.host_check(*files).values["free_bytes"] == 5000 * KiB
    limit.write_text("4000\n")
    assert examine.host_check(*files).values["free_bytes"] == 3000
    assert examine.host_check(*files).state is State.NOTE


def test_absent_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine, "version_of", lambda name: None if name in {"numba", "matplotlib"} else "1.0")
    itself = examine.package_check()
    assert itself.state is State.FAILS
    assert "not installed: numba" in itself.found
    extras = {check.part: check for check in examine.extra_checks()}
    assert extras["matplotlib"].remedy == "pip install 'oomscope[plots]'"
    assert extras["submitit"].state is State.OK


def test_without_an_answer_on_torch_no_machine_is_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> str:
        raise ValueError("version")

    monkeypatch.setattr(examine, "TorchImport", lambda: nullcontext(SimpleNamespace(outcome=broken)))
    diagnosis = examine.examine()
    assert (diagnosis.exit_code, diagnosis.backends) == (ExitCode.MACHINE_UNFIT, ())
    (torch,) = [check for check in diagnosis.checks if check.part == "torch"]
    assert torch.found.startswith("cannot be checked (ValueError: version)")


@pytest.mark.parametrize(
    ("states", "code", "backends"),
    [
        ({"torch": State.OK, "virtual card": State.OK}, ExitCode.OK, ("virtual",)),
        ({"torch": State.OK}, ExitCode.MACHINE_UNFIT, ()),
        ({"torch": State.OK, "CUDA": State.OK, "NVML": State.OK}, ExitCode.OK, ("cuda",)),
        ({"torch": State.OK, "CUDA": State.OK, "NVML": State.MISSING}, ExitCode.MACHINE_UNFIT, ()),
        ({"torch": State.OK, "virtual card": State.OK, "git": State.MISSING}, ExitCode.OK, ("virtual",)),
        ({"torch": State.FAILS, "git": State.MISSING}, ExitCode.MACHINE_UNFIT, ()),
    ],
)
def test_what_the_machine_is_fit_for(states: dict[str, State], code: ExitCode, backends: tuple[str, ...]) -> None:
    diagnosis = Diagnosis(tuple(Check(part, state, "") for part, state in states.items()))
    assert (diagnosis.exit_code, diagnosis.backends) == (code, backends)
