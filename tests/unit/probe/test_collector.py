"""Python's collector rests while a probe imports, and only then."""

from __future__ import annotations

import contextlib
import gc
from pathlib import Path

from oomscope.probe.collector import uncollected
from oomscope.probe.job import HarnessTarget, ProbeJob
from oomscope.probe.measure import measure


def test_it_is_on_afterwards_also_where_an_import_fails() -> None:
    with contextlib.suppress(ImportError), uncollected():
        assert not gc.isenabled()
        raise ImportError
    assert gc.isenabled()


def test_it_stays_off_where_it_was_off() -> None:
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_harness_is_imported_without_it(tmp_path: Path) -> None:
    harness = tmp_path / "harness.py"
    harness.write_text("import gc\nraise RuntimeError(f'the collector is {gc.isenabled()}')\n")
    job = ProbeJob(target=HarnessTarget(harness=str(harness), repo=str(tmp_path)), backend="sim")
    result = measure(job, progress=lambda step: None, keep=lambda result: None)
    assert result.failure is not None
    assert "the collector is False" in result.failure.message
    assert gc.isenabled()
