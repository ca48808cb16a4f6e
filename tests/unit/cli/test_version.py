from __future__ import annotations

from pathlib import Path

import pytest

from oomscope.cli.version import available_backends, version_line


@pytest.mark.parametrize(
    ("torch", "driver", "backends"),
    [
        (None, True, []),
        ("2.13.0+cpu", True, ["sim"]),
        ("2.13.0", False, ["sim"]),
        ("2.13.0", True, ["cuda", "sim"]),
        ("2.13.0+cu130", True, ["cuda", "sim"]),
    ],
)
def test_backends(tmp_path: Path, torch: str | None, driver: bool, backends: list[str]) -> None:
    if driver:
        (tmp_path / "nvidiactl").touch()
    assert available_backends(torch, tmp_path) == backends


def test_line_without_torch() -> None:
    line = version_line({"oomscope": "1", "python": "3.11", "torch": None, "backends": []})
    assert line == "oomscope 1 (Python 3.11, torch not installed, backends: none)"
