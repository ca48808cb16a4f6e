"""Python's collector rests while a probe imports, and only then."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from oomscope.probe.job import HarnessTarget, ProbeJob
from oomscope.probe.measure import measure
from oomscope.probe.targets.importing import uncollected


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    threshold = gc.get_threshold()
    yield
    gc.enable()
    gc.set_threshold(*threshold)


def test_it_is_as_before_afterwards_also_where_an_import_fails() -> None:
    before = gc.get_threshold()
    with contextlib.suppress(ImportError), uncollected():
        assert gc.get_threshold()[0] == 0
        raise ImportError
    assert gc.get_threshold() == before
    assert gc.isenabled()


def test_nothing_is_collected_meanwhile() -> None:
    with uncollected():
        begun = sum(generation["collections"] for generation in gc.get_stats())
        made = [[number] for number in range(50_000)]
        assert sum(generation["collections"] for generation in gc.get_stats()) == begun
    assert len(made) == 50_000


def test_it_stays_off_where_it_was_off() -> None:
    gc.disable()
    with uncollected():
        pass
    assert not gc.isenabled()


def test_what_an_import_asks_of_it_lasts() -> None:
    with uncollected():
        gc.disable()
        gc.set_threshold(50_000, 5, 5)
    assert not gc.isenabled()
    assert gc.get_threshold()[0] == 50_000


def test_a_harness_is_imported_without_it(tmp_path: Path) -> None:
    harness = tmp_path / "harness.py"
    harness.write_text("import gc\nraise RuntimeError(f'it looks after {gc.get_threshold()[0]}')\n")
    job = ProbeJob(target=HarnessTarget(harness=str(harness), repo=str(tmp_path)), backend="virtual")
    result = measure(job, progress=lambda step: None, keep=lambda result: None)
    assert result.failure is not None
    assert "it looks after 0" in result.failure.message
    assert gc.get_threshold()[0] > 0
