"""The row of the virtual card."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomscope.doctor.check import Diagnosis, State
from oomscope.doctor.torch_checks import PART, virtual_card_check
from oomscope.errors import MachineUnfitError
from oomscope.virtual import loading
from oomscope.virtual.installed_torch import InstalledTorch


def test_a_card_that_can_be_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "liboomscope_card.so").write_bytes(bytes(2048))
    monkeypatch.setattr(loading, "LIBRARIES", tmp_path)
    monkeypatch.setattr(loading, "check", lambda: InstalledTorch(tmp_path, "2.15.0", "13.2"))
    check = virtual_card_check()
    assert (check.part, check.state) == (PART, State.OK)
    assert check.found == "liboomscope_card.so (2.00 KiB) has all that torch 2.15.0 wants"
    assert check.values["size_bytes"] == 2048
    assert Diagnosis((check,)).backends == ("virtual",)


def test_a_card_that_cannot_says_why_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def unfit() -> InstalledTorch:
        raise MachineUnfitError("torch 2.13.0 is built without CUDA", where="/site/torch", remedy="install another")

    monkeypatch.setattr(loading, "check", unfit)
    check = virtual_card_check()
    assert (check.state, check.found) == (State.MISSING, "/site/torch: torch 2.13.0 is built without CUDA")
    assert (check.disables, check.remedy) == ("--backend virtual", "install another")
    assert Diagnosis((check,)).backends == ()
