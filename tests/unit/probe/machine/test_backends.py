"""Which backend answers on which machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomscope.errors import MachineUnfitError
from oomscope.probe.job import BundledTarget, ProbeJob, ProgramTarget
from oomscope.probe.machine import backends
from oomscope.probe.machine.backends import backend_of

BUNDLED = ProbeJob(target=BundledTarget(config={}))


class Machine:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch

    def __call__(self, *, card: bool = False, torch_has_cuda: bool = True, virtual_card: bool = True) -> None:
        self._patch.setattr(backends, "has_card", lambda: card)
        self._patch.setattr(backends, "has_virtual_card", lambda: virtual_card)
        self._patch.setattr(backends, "_torch_has_cuda", lambda: torch_has_cuda)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"card": True}, "cuda"),
        ({"card": True, "torch_has_cuda": False}, "virtual"),
        ({}, "virtual"),
    ],
)
def test_auto_takes_what_is_there(machine: Machine, facts: dict[str, bool], expected: str) -> None:
    machine(**facts)
    assert backend_of(BUNDLED, {}) == expected


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_a_hidden_card_is_none(machine: Machine, hidden: str) -> None:
    machine(card=True)
    assert backend_of(BUNDLED, {"CUDA_VISIBLE_DEVICES": hidden}) == "virtual"
    assert backend_of(BUNDLED, {"CUDA_VISIBLE_DEVICES": "1"}) == "cuda"


@pytest.mark.parametrize("card", [True, False])
def test_a_program_brings_its_own_torch(machine: Machine, tmp_path: Path, card: bool) -> None:
    machine(card=card, torch_has_cuda=False, virtual_card=False)
    program = ProbeJob(target=ProgramTarget(repo=str(tmp_path), command="python train.py"))
    assert backend_of(program, {}) == ("cuda" if card else "virtual")


def test_what_is_asked_for_is_taken(machine: Machine) -> None:
    machine(card=True)
    for backend in ("virtual", "cuda"):
        assert backend_of(ProbeJob(target=BundledTarget(config={}), backend=backend), {}) == backend


def refuse() -> None:
    raise MachineUnfitError("no")
