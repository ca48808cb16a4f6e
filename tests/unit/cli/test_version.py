from __future__ import annotations

from pathlib import Path

import pytest

from oomscope.cli.version import available_backends, version_line


@pytest.mark.parametrize(
    ("torch", "driver", "backends"),
    [
        (None, True, []),
        ("2.13.0+cpu", True, []),
        ("2.13.0", False, []),
        ("2.13.0", True, ["cuda"]),
        ("2.13.0+cu130", True, ["cuda"]),
    ],
)
@pytest.mark.parametrize("card", [True, False])
def test_backends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch: str | None, driver: bool, backends: list[str], card: bool
) -> None:
    monkeypatch.setattr("oomscope.probe.machine.backends.has_virtual_card", lambda: card)
    if driver:
        (tmp_path / "nvidiactl").touch()
    expected = [*backends, *(["virtual"] if card and torch else [])]
    assert available_backends(torch, tmp_path) == expected


def test_line_without_torch() -> None:
    line = version_line({"oomscope": "1", "python": "3.11", "torch": None, "backends": []})
    assert line == "oomscope 1 (Python 3.11, torch not installed, backends: none)"
