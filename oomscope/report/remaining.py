"""How long a search may still take: an upper bound where there is one, and nothing said where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

from oomscope.bisect.results.reporter import Plan
from oomscope.bisect.results.result import ProbeRecord
from oomscope.bisect.search.line import Answer, Search
from oomscope.report.search_status import Asked, Bracket

RECENT: Final = 8
"""Answers that tell how long the next one takes: the first probe of all also starts what the others are forked from."""


def probes_left(plan: Plan, since: Sequence[ProbeRecord], asked: Sequence[Asked], bracket: Bracket) -> int | None:
    """Return how many answers the search for the culprit needs at most, untestable ones apart.

    Args:
        plan: what was announced last.
        since: the probes since then.
        asked: all probes on the plan's line.
        bracket: between which of its places the culprit is.

    None where more is done than was announced: what that takes is not known.
    """
    line = plan.line
    if line is not None and bracket.good is not None and bracket.bad is not None:
        known = {each.place for each in asked}
        between = range(bracket.good + 1, bracket.bad)
        if all(place.is_chosen for place in line.places[1:]):
            return Search.over(1 + sum(place not in known for place in between)).probes_left or None
    left = plan.probes_at_most - sum(record.answer is not Answer.UNTESTABLE for record in since)
    return left if left > 0 else None


def seconds_left(probes: int | None, records: Sequence[ProbeRecord], running_s: float) -> float | None:
    """Return the seconds for ``probes`` answers, by the median of the recent ones; None before there is one.

    Args:
        probes: how many.
        records: the probes so far; what was known from before took no time and tells nothing.
        running_s: for how long the current one has been running.
    """
    took = [record.wall_s for record in records if not record.cached and record.outcome is not None][-RECENT:]
    if probes is None or not took:
        return None
    each = median(took)
    return max(0.0, (probes - 1) * each) + max(0.0, each - running_s)
