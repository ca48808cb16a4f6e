"""What oomscope claims of a program that fails by fragmentation: the verdict of a probe on the same virtual card."""

from __future__ import annotations

import os
from pathlib import Path

from programs import STEPS, VARIABLE
from runs import NON_TORCH, be_silent
from search import Case

from oomscope.probe.job import HarnessTarget, ProbeJob
from oomscope.probe.machine.forked_run import ForkedRun
from oomscope.probe.measure import measure
from oomscope.probe.result import ProbeResult
from oomscope.snapshot.verdict_types import Verdict

HARNESS = Path(__file__).parent / "programs.py"


def probe(case: Case) -> Verdict:
    """Return what a probe says of the program, in a fork of this process; call ``runs.warm_up`` before."""
    job = ProbeJob(
        target=HarnessTarget(harness=str(HARNESS), repo=str(HARNESS.parent)),
        backend="virtual",
        iterations=STEPS,
        limit_bytes=case.available_bytes + NON_TORCH,
        non_torch_bytes=NON_TORCH,
        confirm=True,
    )

    def measured() -> ProbeResult:
        be_silent()
        os.environ[VARIABLE] = case.name
        return measure(job, progress=lambda _: None, keep=lambda _: None)

    run = ForkedRun(measured)
    result, status = run.value(), run.wait()
    if result is None or result.verdict is None:
        why = result.failure.message if result and result.failure else f"status {status}"
        raise RuntimeError(f"the probe of {case.name} gave no verdict: {why}")
    return result.verdict
