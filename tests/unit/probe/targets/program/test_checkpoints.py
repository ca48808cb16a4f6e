"""What a program saves is noticed, and saved as ever."""

from __future__ import annotations

import io
import pickle
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from oomscope.probe.targets.program.checkpoints import follow_saves


@pytest.fixture
def saved(monkeypatch) -> list[str]:
    """The files that are noticed while the test runs."""
    names: list[str] = []
    monkeypatch.setattr(torch, "save", torch.save)
    monkeypatch.setattr(torch.serialization, "save", torch.serialization.save)
    module = ModuleType("safetensors.torch")
    module.save_file = lambda tensors, filename: Path(filename).write_text("saved")
    monkeypatch.setitem(sys.modules, "safetensors.torch", module)
    follow_saves(torch, names.append)
    return names


def test_each_file_is_named_once_it_is_there(saved: list[str], tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({}, "a.pt")
    torch.serialization.save({1: 2}, f=tmp_path / "b.pt")
    sys.modules["safetensors.torch"].save_file({}, filename="c.safetensors")
    torch.save({}, io.BytesIO())
    with pytest.raises(RuntimeError):
        torch.save({}, "missing/d.pt")
    assert saved == [str(tmp_path / name) for name in ("a.pt", "b.pt", "c.safetensors")]
    assert torch.load("b.pt") == {1: 2}


def test_safetensors_that_is_still_being_imported_stays_unchanged(monkeypatch) -> None:
    monkeypatch.setattr(torch, "save", torch.save)
    monkeypatch.setattr(torch.serialization, "save", torch.serialization.save)
    unfinished = ModuleType("safetensors.torch")
    monkeypatch.setitem(sys.modules, "safetensors.torch", unfinished)
    follow_saves(torch, lambda path: None)
    assert not hasattr(unfinished, "save_file")


def test_it_is_still_the_function_of_its_module(saved: list[str]) -> None:
    assert pickle.loads(pickle.dumps(torch.save)) is torch.save
