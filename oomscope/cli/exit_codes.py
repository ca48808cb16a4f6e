"""Which exit code a result means; errors carry their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomscope.errors import ExitCode

if TYPE_CHECKING:
    from oomscope.probe.result import ProbeResult


def probe_exit_code(result: ProbeResult) -> ExitCode:
    """Return what ``oomscope probe`` exits with."""
    if result.outcome == "fits":
        return ExitCode.OK
    if result.outcome == "oom":
        return ExitCode.OOM
    unfit = result.failure is not None and result.failure.kind == "unfit"
    return ExitCode.MACHINE_UNFIT if unfit else ExitCode.TARGET_FAILED
