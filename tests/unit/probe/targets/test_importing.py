"""Modules of a checkout are forgotten, by whatever name their files go; no others are."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

import oomscope
from oomscope.probe.targets.importing import forget_modules


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """A copy of what is imported, to forget from."""
    known = dict(sys.modules)
    monkeypatch.setattr(sys, "modules", known)
    return known


def add(modules: dict[str, ModuleType], name: str, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    modules[name] = ModuleType(name)
    modules[name].__file__ = str(file)


def test_what_lies_below_the_checkout_is_forgotten(tmp_path: Path, modules: dict[str, ModuleType]) -> None:
    repo = tmp_path / "repo"
    add(modules, "model", repo / "src/model.py")
    add(modules, "neighbour", tmp_path / "repo-2/neighbour.py")
    add(modules, "helper", tmp_path / "helper.py")
    add(modules, "other", tmp_path / "other.py")
    forget_modules(repo, [tmp_path / "helper.py"])
    assert {"model", "helper"}.isdisjoint(modules)
    assert {"neighbour", "other", "json", "pytest", "oomscope"} <= modules.keys()


def test_links_are_followed(tmp_path: Path, modules: dict[str, ModuleType]) -> None:
    repo = tmp_path / "repo"
    add(modules, "real", repo / "real.py")
    (tmp_path / "link").symlink_to(repo)
    (tmp_path / "file.py").symlink_to(repo / "real.py")
    modules["by_folder"], modules["by_file"] = ModuleType("by_folder"), ModuleType("by_file")
    modules["by_folder"].__file__ = str(tmp_path / "link/real.py")
    modules["by_file"].__file__ = str(tmp_path / "file.py")
    forget_modules(tmp_path / "link")
    assert {"real", "by_folder", "by_file"}.isdisjoint(modules)


def test_what_is_installed_stays_wherever_the_environment_lies(modules: dict[str, ModuleType]) -> None:
    forget_modules(Path("/"))
    assert modules["json"] is json
    assert modules["oomscope"] is oomscope
    assert "pytest" in modules
