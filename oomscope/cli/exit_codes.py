"""Which exit code a result means; errors carry their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomscope.errors import ExitCode

if TYPE_CHECKING:
    from oomscope.probe.result import ErrorKind, ProbeResult


_FAILURES: dict[ErrorKind | None, ExitCode] = {
    "unfit": ExitCode.MACHINE_UNFIT,
    "usage": ExitCode.USAGE,
    "internal": ExitCode.INTERNAL,
}
"""Failures that are not the target's."""


def probe_exit_code(result: ProbeResult) -> ExitCode:
    """Return what ``oomscope probe`` exits with."""
    if result.outcome == "fits":
        return ExitCode.OK
    if result.outcome == "oom":
        return ExitCode.OOM
    kind = result.failure.kind if result.failure else None
    return _FAILURES.get(kind, ExitCode.TARGET_FAILED)
