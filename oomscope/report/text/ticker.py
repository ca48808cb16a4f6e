"""Live progress of one piece of work, in one line.

Remaining time is estimated only for what is counted, from how long the last ones took.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from oomscope.printable import printable
from oomscope.report.sentences import duration_text

RECENT: Final = 8
"""Number of recent steps from which the next one's time is estimated."""
INSTANT_S: Final = 0.02
"""Seconds below which a step was known before, and does not count for the estimate."""


@dataclass(frozen=True, kw_only=True)
class WorkState:
    """The state of a piece of work at one moment. Times are seconds of any clock."""

    what: str
    began: float
    stage: str = ""
    done: int = 0
    total: int = 0
    """Number of steps; 0 where it is not known."""
    moments: tuple[float, ...] = ()
    """Time when the counting began, then when each step was done."""
    is_all: bool = True
    """Whether nothing follows the counted steps; else the estimate is a lower bound."""


def ticker_text(work: WorkState, now: float) -> str:
    """Return ``cfg.yaml: step 1 of 2, 3 s, at least 4 s more``."""
    stage = f"{work.stage} {work.done:,} of {work.total:,}".lstrip() if work.total else work.stage
    parts = [f"{printable(work.what)}: {stage}" if stage else printable(work.what), f"{now - work.began:.0f} s"]
    left = seconds_for(work.moments, work.total - work.done, now)
    if left is not None:
        parts.append(f"{'about' if work.is_all else 'at least'} {rounded_text(left)} more")
    return ", ".join(parts)


def seconds_for(moments: tuple[float, ...], left: int, now: float) -> float | None:
    """Return the seconds for ``left`` more, by the last ones; None before there is one, and where none is left.

    ``moments`` are those at which the counting began, and at which each was done.
    """
    took = [after - before for before, after in pairwise(moments[-RECENT - 1 :])]
    telling = sum(each >= INSTANT_S for each in took)
    if not telling or left <= 0:
        return None
    return max(0.0, left * sum(took) / telling - (now - moments[-1]))


def rounded_text(seconds: float) -> str:
    """Return a duration that is not more exact than an estimate can be."""
    if seconds < 10:
        return f"{max(1, round(seconds))} s"
    return duration_text(5 * round(seconds / 5)).replace(".0 s", " s")
