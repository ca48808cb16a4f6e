"""The table: a line a row, the reasons, the counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from .comparing import Outcome, Verdict, summary

HEADINGS = ("", "line", "recorded", "measured", "difference", "row")
LINE = "{:<9} {:>4} {:>15} {:>15} {:>15}  {}"
_LONGEST_LABEL = 150


def line_of(outcome: Outcome) -> str:
    """Return a row's line; bytes in full, so that a difference can be looked at."""
    label = outcome.row.label[:_LONGEST_LABEL]
    return LINE.format(
        outcome.verdict.value,
        outcome.row.line,
        f"{outcome.recorded:,}",
        "" if outcome.measured is None else f"{outcome.measured:,}",
        "" if outcome.difference is None else f"{outcome.difference:+,}",
        f"{label}: {outcome.reason}" if outcome.reason else label,
    )


def closing(outcomes: Iterable[Outcome]) -> Iterable[str]:
    """Yield what stands below the table: each reason with its rows, and the counts of each repository and of all."""
    listed = list(outcomes)
    for verdict in (Verdict.EXCLUDED, Verdict.WORKSPACE, Verdict.FAILED, Verdict.OFF, Verdict.NEAR):
        reasons = Counter(outcome.reason for outcome in listed if outcome.verdict is verdict)
        for reason, count in reasons.most_common():
            yield f"{verdict.value}: {count} rows: {reason or 'unexplained'}"
    repositories = dict.fromkeys(outcome.row.repository for outcome in listed)
    if len(repositories) > 1:
        for repository in repositories:
            yield f"{repository}: {summary(one for one in listed if one.row.repository == repository)}"
    yield summary(listed)
