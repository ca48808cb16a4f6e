"""torch, imported by stand-ins that do all that an import can do, and the virtual card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from oomscope.doctor.check import Diagnosis, State
from oomscope.doctor.torch_checks import VIRTUAL_CARD, TorchImport, torch_checks, virtual_card_check
from oomscope.errors import MachineUnfitError
from oomscope.virtual import loading
from oomscope.virtual.installed_torch import InstalledTorch

CPU: dict[str, Any] = {
    "version": "2.13.0+cpu",
    "path": "torch/__init__.py",
    "cuda": None,
    "hip": None,
    "devices": 0,
    "allocator_backend": None,
    "warnings": [],
}
CUDA = {**CPU, "version": "2.13.0+cu130", "cuda": "13.0", "devices": 2, "allocator_backend": "native"}


def outcome(tmp_path: Path, program: str, timeout_s: float = 30.0) -> dict[str, Any] | str:
    path = tmp_path / "program.py"
    path.write_text(program)
    with TorchImport(path) as importing:
        return importing.outcome(timeout_s)


def test_a_report(tmp_path: Path) -> None:
    assert outcome(tmp_path, f"print('noise')\nprint({json.dumps(CUDA)!r})") == CUDA


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("raise OSError('libcudart.so.13: cannot open shared object file')", "OSError: libcudart.so.13: cannot open"),
        ("raise SystemExit(3)", "status 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "importing it ended by SIGSEGV"),
    ],
)
def test_no_report(tmp_path: Path, program: str, said: str) -> None:
    found = outcome(tmp_path, program)
    assert isinstance(found, str)
    assert said in found
    assert "\n" not in found


def test_an_import_that_hangs_is_ended(tmp_path: Path) -> None:
    assert outcome(tmp_path, "import time; time.sleep(600)", timeout_s=0.3) == "importing it took more than 0.3 s"


@pytest.mark.parametrize(
    ("torch", "states", "found"),
    [
        (CPU, [State.OK, State.MISSING], "torch is built without it"),
        (CUDA, [State.OK, State.OK], "CUDA 13.0, 2 devices"),
        ({**CUDA, "devices": 0}, [State.OK, State.MISSING], "torch sees no device"),
        ({**CUDA, "devices": 0, "warnings": ["driver too old"]}, [State.OK, State.MISSING], "driver too old"),
        ({**CPU, "hip": "6.3"}, [State.OK, State.MISSING], "torch is built for ROCm"),
        ({**CPU, "version": "2.10.1"}, [State.FAILS, State.MISSING], "torch is built without it"),
        ({**CPU, "version": "git-abc"}, [State.OK, State.MISSING], "torch is built without it"),
    ],
)
def test_rows(torch: dict[str, Any], states: list[State], found: str) -> None:
    checks = list(torch_checks(torch))
    assert [check.state for check in checks] == states
    assert found in checks[1].found
    assert all(check.disables and check.remedy for check in checks if check.state is not State.OK)


def test_a_torch_that_cannot_be_imported() -> None:
    (check,) = torch_checks("importing it ended by SIGSEGV")
    assert check.state is State.FAILS
    assert "cannot be imported: importing it ended by SIGSEGV" in check.found


def test_a_card_that_can_be_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "liboomscope_card.so").write_bytes(bytes(2048))
    monkeypatch.setattr(loading, "LIBRARIES", tmp_path)
    monkeypatch.setattr(loading, "check", lambda: InstalledTorch(tmp_path, "2.15.0", "13.2"))
    check = virtual_card_check()
    assert (check.part, check.state) == (VIRTUAL_CARD, State.OK)
    assert check.found == "liboomscope_card.so (2.00 KiB) has all that torch 2.15.0 needs"
    assert Diagnosis((check,)).backends == ("virtual",)


def test_a_card_that_cannot_gives_reason_and_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def unfit() -> InstalledTorch:
        raise MachineUnfitError("torch 2.13.0 is built without CUDA", where="/site/torch", remedy="install another")

    monkeypatch.setattr(loading, "check", unfit)
    check = virtual_card_check()
    assert (check.state, check.found) == (State.MISSING, "/site/torch: torch 2.13.0 is built without CUDA")
    assert (check.disables, check.remedy) == ("--backend virtual", "install another")
