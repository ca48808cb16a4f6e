"""The statuses of a metric, a case and a night, and which one counts where several apply.

One function, :func:`ruling`, makes exit code, word and tone of statuses; every report shows what it returns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from oomscope.errors import ExitCode, gravest


class Status(StrEnum):
    """The status of a metric or case, gravest first."""

    DEFECT = "internal error"
    """A defect of oomscope; the other cases have their answers."""
    UNUSABLE = "unusable"
    """The suite or the configuration is wrong, so that there is nothing to measure."""
    UNFIT = "unfit"
    """The machine cannot measure it."""
    UNMEASURED = "nothing measured"
    """The case ran, and a number that counts is missing."""
    NO_BASELINE = "no baseline"
    """Nothing was accepted to compare with."""
    INCOMPATIBLE = "incompatible baseline"
    """What was accepted was measured under other conditions."""
    WORSE = "worse"
    """Worse than the failing band, in two measurements."""
    UNTESTABLE = "untestable"
    """The code under measurement failed: neither red nor green."""
    UNCONFIRMED = "unconfirmed"
    """Worse than the failing band, or on a card better, in the first measurement but not in the second."""
    WARN = "warn"
    """Worse, inside the band."""
    BETTER = "better"
    """Better than the baseline, on a card twice; the baseline should be updated."""
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
"""Statuses of a night from which the search for a culprit may start."""


class Tone(StrEnum):
    """How a status is shown: by colour, sign or level. The word beside it says the same."""

    GOOD = "good"
    WARN = "warn"
    """The status passes, with a remark."""
    BAD = "bad"
    """The status does not pass."""


@dataclass(frozen=True, kw_only=True)
class Ruling:
    """The result of several statuses together."""

    exit_code: ExitCode
    tone: Tone

    @property
    def passes(self) -> bool:
        """Whether the exit code is 0."""
        return self.exit_code is ExitCode.OK

    @property
    def word(self) -> str:
        """``GREEN``, ``RED`` for a regression, ``NOT GREEN`` for all else."""
        return {ExitCode.OK: "GREEN", ExitCode.REGRESSION: "RED"}.get(self.exit_code, "NOT GREEN")


def ruling(statuses: Iterable[Status], *, strict: bool = False) -> Ruling:
    """Return the result of a metric, a case or a night with ``statuses``; without any, nothing was measured.

    Args:
        statuses: those of the metric, the case or all cases.
        strict: better than the baseline is no success.
    """
    seen = frozenset(statuses)
    better = ExitCode.IMPROVED if strict else ExitCode.OK
    codes = [better if status is Status.BETTER else _CODES.get(status, ExitCode.OK) for status in seen]
    code = gravest(codes) if codes else ExitCode.NOTHING_MEASURED
    passing = Tone.WARN if seen & {Status.WARN, Status.UNCONFIRMED} else Tone.GOOD
    return Ruling(exit_code=code, tone=passing if code is ExitCode.OK else Tone.BAD)
