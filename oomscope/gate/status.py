"""What the gate says of a metric, a case and a suite, and which says most where several apply."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from oomscope.errors import ExitCode, gravest


class Status(StrEnum):
    """One answer of the gate."""

    DEFECT = "internal error"
    """A defect of oomscope; the other cases have their answers."""
    UNUSABLE = "unusable"
    """The suite or the configuration is wrong, so that there is nothing to measure."""
    UNFIT = "unfit"
    """The machine cannot measure it."""
    UNMEASURED = "nothing measured"
    """It ran, and a number that counts is missing."""
    NO_BASELINE = "no baseline"
    """Nothing was accepted to compare with."""
    INCOMPATIBLE = "incompatible baseline"
    """What was accepted was measured under other conditions."""
    WORSE = "worse"
    """Beyond the band that fails, and again when it was measured anew."""
    UNTESTABLE = "untestable"
    """The code under measurement failed: neither red nor green."""
    UNCONFIRMED = "unconfirmed"
    """Beyond the band that fails at first, and not when it was measured anew."""
    WARN = "warn"
    """Worse, inside the band."""
    BETTER = "better"
    """Better than the baseline, which should be updated."""
    SAME = "same"
    """As expected."""


GRAVITY: tuple[Status, ...] = tuple(Status)
"""Gravest first; codes of :data:`oomscope.errors.GRAVITY` come in the same order."""

_CODES = {
    Status.DEFECT: ExitCode.INTERNAL,
    Status.UNUSABLE: ExitCode.USAGE,
    Status.UNFIT: ExitCode.MACHINE_UNFIT,
    Status.UNMEASURED: ExitCode.NOTHING_MEASURED,
    Status.NO_BASELINE: ExitCode.NO_BASELINE,
    Status.INCOMPATIBLE: ExitCode.NO_BASELINE,
    Status.WORSE: ExitCode.REGRESSION,
    Status.UNTESTABLE: ExitCode.TARGET_FAILED,
}
GREEN = frozenset({Status.SAME, Status.BETTER, Status.WARN})
"""What a later regression may be traced back to."""


def worst(statuses: Iterable[Status]) -> Status | None:
    """Return the gravest of ``statuses``; None where there is none."""
    return min(statuses, key=GRAVITY.index, default=None)


def exit_code(statuses: Iterable[Status], *, strict: bool = False) -> ExitCode:
    """Return the exit code of a gate whose cases have ``statuses``; without any, nothing was measured.

    Args:
        statuses: those of the cases.
        strict: better than the baseline is no success.
    """
    better = ExitCode.IMPROVED if strict else ExitCode.OK
    codes = [better if status is Status.BETTER else _CODES.get(status, ExitCode.OK) for status in statuses]
    return gravest(codes) if codes else ExitCode.NOTHING_MEASURED
