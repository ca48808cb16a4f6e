"""Programs under torch.compile: Inductor's kernels are built by Triton, loaded on the virtual card, and launched."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from pathlib import Path

import pytest

from oomscope.probe import launch
from oomscope.probe.job import ProbeJob, ProgramTarget
from oomscope.virtual.build import has_compiler

PROGRAMS = Path(__file__).parent / "programs"
HEADER = Path(sysconfig.get_path("include")) / "Python.h"

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(not has_compiler(), reason="Triton needs a C compiler"),
    pytest.mark.skipif(not HEADER.exists(), reason="Triton needs Python's headers"),
]


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_compiled_model_trains(mode: str) -> None:
    target = ProgramTarget(repo=str(PROGRAMS), command=f"{sys.executable} compiled.py {mode}")
    result = launch.run(ProbeJob(target=target, backend="virtual", gpu="a100-80gb", iterations=2, timeout_s=200))
    assert result.outcome == "fits", result.failure
    assert result.peak.requested_bytes > 3 * (256 * 1024 * 2 + 1024 + 256) * 4, "less than parameters and two moments"
    assert result.peak.site.file == "compiled.py"
