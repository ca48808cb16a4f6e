"""Calls around the import of a module, whoever looks for it before and however often."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oomscope.capture.import_hook import AroundImport


@pytest.fixture
def hooked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Yield the calls of a hook around a module ``heavy``, which appends to them while it runs."""
    calls: list[str] = []
    (tmp_path / "heavy.py").write_text("import sys\nsys.calls.append('run')\n")
    monkeypatch.setattr(sys, "calls", calls, raising=False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.syspath_prepend(tmp_path)
    AroundImport("heavy", before=lambda: calls.append("before"), then=lambda: calls.append("then")).install()
    yield calls
    sys.modules.pop("heavy", None)


def test_the_calls_come_around_the_module(hooked: list[str]) -> None:
    importlib.import_module("heavy")
    assert hooked == ["before", "run", "then"]


def test_looking_for_the_module_first_does_not_use_the_hook_up(hooked: list[str]) -> None:
    for _ in range(3):
        assert importlib.util.find_spec("heavy") is not None
    assert hooked == []
    importlib.import_module("heavy")
    assert hooked == ["before", "run", "then"]


def test_a_module_that_is_imported_again_is_left_alone(hooked: list[str]) -> None:
    importlib.import_module("heavy")
    del sys.modules["heavy"]
    importlib.import_module("heavy")
    assert hooked == ["before", "run", "then", "run"]


def test_two_hooks_of_one_module_both_call(hooked: list[str]) -> None:
    AroundImport("heavy", before=lambda: hooked.append("outer before"), then=lambda: hooked.append("outer")).install()
    importlib.import_module("heavy")
    assert hooked == ["outer before", "before", "run", "then", "outer"]


def test_an_error_before_the_module_ends_the_import_and_the_hook_stays(tmp_path: Path, hooked: list[str]) -> None:
    reasons = [RuntimeError("no card")]

    def before() -> None:
        if reasons:
            raise reasons.pop()

    AroundImport("heavy", before=before).install()
    with pytest.raises(RuntimeError, match="no card"):
        importlib.import_module("heavy")
    assert hooked == []
    importlib.import_module("heavy")
    assert hooked == ["before", "run", "then"]


def test_the_first_call_finds_no_such_module_yet(hooked: list[str]) -> None:
    AroundImport("heavy", before=lambda: hooked.append(str("heavy" in sys.modules))).install()
    importlib.import_module("heavy")
    assert hooked == ["False", "before", "run", "then"]


def test_a_module_that_is_not_there_is_not_found(hooked: list[str]) -> None:
    AroundImport("no_such_module_at_all").install()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_module_at_all")
