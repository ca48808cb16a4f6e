"""What Triton could not compile for want of, in one line."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

import pytest

from oomscope.probe.analysis.failures import absent, describe

NO_COMPILER = RuntimeError("Failed to find C compiler. Please specify via CC environment variable or set triton.knobs.")


def build_failed(include: Path) -> BaseException:
    return subprocess.CalledProcessError(1, ["gcc", "main.c", "-O3", "-shared", "-o", "main.so", f"-I{include}"])


@pytest.fixture
def include(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of Python's headers, empty."""
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path) if name == "include" else "")
    monkeypatch.setenv("CC", "cc")
    return tmp_path


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert describe(NO_COMPILER) == "Triton needs a C compiler, and there is none: install gcc, or name one in CC"


def test_no_headers(include: Path) -> None:
    said = describe(build_failed(include))
    assert said.startswith(f"Triton needs Python's headers, and {include}/Python.h is absent: install python3.")


def test_what_fails_for_another_reason_is_told_as_it_is(include: Path) -> None:
    other = subprocess.CalledProcessError(1, ["gcc", "other.c"])
    assert describe(other).startswith("CalledProcessError: Command")
    (include / "Python.h").touch()
    assert absent() is None
    assert describe(build_failed(include)).startswith("CalledProcessError: Command")
    assert describe(NO_COMPILER).startswith("RuntimeError: Failed to find C compiler")
