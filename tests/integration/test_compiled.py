"""Programs that torch.compile makes Triton kernels of, started as they are on a virtual card."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.test_programs import probed
from tests.triton_at_hand import needs_triton


@needs_triton
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_compiled_program_has_the_peak_that_torch_reports(mode: str, tmp_path: Path) -> None:
    told = tmp_path / "peak"
    result = probed("compiled.py", mode, str(told), iterations=4)
    assert result.outcome == "fits", result.failure
    assert result.peak.allocated_bytes == int(told.read_text())
    assert {phase.phase for phase in result.phases} >= {"forward", "backward", "optimizer"}
    assert any("(at compiled.py:19" in note and "requested the same bytes" in note for note in result.notes)
    assert not any("inductor" in note for note in result.notes)


@needs_triton
def test_inductor_folds_the_constants_of_a_graph_with_their_real_values() -> None:
    result = probed("folded.py")
    assert result.outcome == "fits", result.failure
    assert not any("values" in note for note in result.notes), result.notes


@needs_triton
def test_a_missing_compiler_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "empty"))
    monkeypatch.delenv("CC", raising=False)
    result = probed("compiled.py", "default", str(tmp_path / "peak"))
    assert result.failure is not None
    assert result.failure.message == (
        "the program ended before its first step (it ended with status 1): "
        "Triton needs a C compiler, and there is none: install gcc, or name one in CC"
    )
