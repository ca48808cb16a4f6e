"""What a measured number says of a published one: exact, apart by a workspace, near, or a miss. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from oomscope.units import MiB

from .rows import Row

NEAR = 0.01
"""Relative."""
SLACK = 2 * MiB
"""Of a difference between two methods, whose numbers are means over batches of different lengths."""
CUBLAS_WORKSPACE = {(8, 0): 8_519_680, (9, 0): 33_554_432}
"""Bytes of cuBLAS's workspace by the version of torch and card: 4096 * 2 + 16 * 8 KiB, and 4096 * 8 KiB on Hopper
(aten/src/ATen/cuda/CublasHandlePool.cpp)."""
CUBLASLT_WORKSPACE = MiB
"""Of cuBLASLt before it used cuBLAS's (the same file): 1024 KiB."""
WORKSPACES = {
    CUBLASLT_WORKSPACE: "cuBLASLt's workspace, 1 MiB, which another torch takes or does not take",
    CUBLAS_WORKSPACE[8, 0]: "cuBLAS's workspace of one more or one less thread",
    CUBLAS_WORKSPACE[9, 0]: "cuBLAS's workspace of one more or one less thread",
    CUBLAS_WORKSPACE[9, 0] - CUBLAS_WORKSPACE[8, 0]: "cuBLAS's workspace before torch had a larger one for Hopper",
}
"""By how many bytes torch versions differ, whatever the program."""


class Verdict(Enum):
    """How a row came out."""

    EXACT = "exact"
    WORKSPACE = "workspace"
    NEAR = "near"
    OFF = "OFF"
    FAILED = "FAILED"
    EXCLUDED = "excluded"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A row beside what was measured."""

    row: Row
    recorded: int
    """Bytes: the row's, or its difference to the reference."""
    measured: int | None = None
    reason: str = ""
    """Why the row is excluded, what failed, or which mechanism explains the difference."""
    verdict: Verdict

    @property
    def difference(self) -> int | None:
        """Measured less recorded."""
        return None if self.measured is None else self.measured - self.recorded


def excluded(row: Row, reason: str) -> Outcome:
    """Return the outcome of a row that is not run."""
    return Outcome(row=row, recorded=row.recorded, verdict=Verdict.EXCLUDED, reason=reason)


def failed(row: Row, error: str) -> Outcome:
    """Return the outcome of a row whose program did not end."""
    return Outcome(row=row, recorded=row.recorded, verdict=Verdict.FAILED, reason=error)


def peak(row: Row, measured: int) -> Outcome:
    """Return the outcome of a peak that one program had."""
    apart = abs(measured - row.recorded)
    reason = ""
    if apart < row.resolution:
        verdict = Verdict.EXACT
    elif workspace := next((size for size in WORKSPACES if abs(apart - size) < row.resolution), 0):
        verdict, reason = Verdict.WORKSPACE, WORKSPACES[workspace]
    else:
        verdict = Verdict.NEAR if apart <= NEAR * row.recorded else Verdict.OFF
    return Outcome(row=row, recorded=row.recorded, measured=measured, verdict=verdict, reason=reason)


def state(row: Row, recorded: int, measured: int) -> Outcome:
    """Return the outcome of a difference to the reference: near is within 1 % of it or 2 MiB."""
    apart = abs(measured - recorded)
    if apart == 0:
        verdict = Verdict.EXACT
    else:
        verdict = Verdict.NEAR if apart <= max(NEAR * abs(recorded), SLACK) else Verdict.OFF
    return Outcome(row=row, recorded=recorded, measured=measured, verdict=verdict)


def summary(outcomes: Iterable[Outcome]) -> str:
    """Return the last line of the table."""
    counts = Counter(outcome.verdict for outcome in outcomes)
    run = counts.total() - counts[Verdict.EXCLUDED]
    return (
        f"{counts[Verdict.EXACT]} of {run} rows exact, {counts[Verdict.WORKSPACE]} by a workspace constant, "
        f"{counts[Verdict.NEAR]} within 1 %, {counts[Verdict.EXCLUDED]} excluded"
    )
