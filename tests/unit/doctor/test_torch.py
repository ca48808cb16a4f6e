"""torch, imported by stand-ins that do all that an import can do."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from oomscope.doctor.check import State
from oomscope.doctor.torch_checks import torch_checks
from oomscope.doctor.torch_import import Torch, TorchImport

CPU = Torch(version="2.13.0+cpu", path="torch/__init__.py", cuda=None, hip=None, devices=0, allocator_backend=None)
CUDA = replace(CPU, version="2.13.0+cu130", cuda="13.0", devices=2, allocator_backend="native")


def outcome(tmp_path: Path, program: str, timeout_s: float = 30.0) -> Torch | str:
    path = tmp_path / "program.py"
    path.write_text(program)
    with TorchImport(path) as importing:
        return importing.outcome(timeout_s)


def test_a_report(tmp_path: Path) -> None:
    said = json.dumps(asdict(CUDA))
    assert outcome(tmp_path, f"print('noise')\nprint({said!r})") == CUDA


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("raise OSError('libcudart.so.13: cannot open shared object file')", "OSError: libcudart.so.13: cannot open"),
        ("raise SystemExit(3)", "status 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "importing it ended by SIGSEGV"),
        ("print('{}')", "it printed no report (KeyError)"),
        ("", "it printed no report (IndexError)"),
        ("print('[1, 2]')", "it printed no report (TypeError)"),
    ],
)
def test_no_report(tmp_path: Path, program: str, said: str) -> None:
    found = outcome(tmp_path, program)
    assert isinstance(found, str)
    assert said in found
    assert "\n" not in found


def test_an_import_that_hangs_is_ended(tmp_path: Path) -> None:
    assert outcome(tmp_path, "import time; time.sleep(600)", timeout_s=0.3) == "importing it took more than 0.3 s"


def test_no_process_can_be_started(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "gone"))
    assert outcome(tmp_path, "") == "no process can be started for it (No such file or directory)"


@pytest.mark.parametrize(
    ("torch", "states", "found"),
    [
        (CPU, [State.OK, State.MISSING], "torch is built without it"),
        (CUDA, [State.OK, State.OK], "CUDA 13.0, 2 devices"),
        (replace(CUDA, devices=0), [State.OK, State.MISSING], "torch sees no device"),
        (replace(CUDA, devices=0, warnings=("driver too old",)), [State.OK, State.MISSING], "driver too old"),
        (replace(CPU, hip="6.3"), [State.OK, State.MISSING], "torch is built for ROCm"),
        (replace(CPU, version="2.10.1"), [State.FAILS, State.MISSING], "torch is built without it"),
        (replace(CPU, version="git-abc"), [State.OK, State.MISSING], "torch is built without it"),
    ],
)
def test_rows(torch: Torch, states: list[State], found: str) -> None:
    checks = list(torch_checks(torch))
    assert [check.state for check in checks] == states
    assert found in checks[1].found
    assert all(check.disables and check.remedy for check in checks if check.state is not State.OK)


def test_a_torch_that_says_nothing() -> None:
    (check,) = torch_checks("importing it ended by SIGSEGV")
    assert check.state is State.FAILS
    assert "cannot be imported: importing it ended by SIGSEGV" in check.found
