"""What a search believes where answers may be wrong: a bar for each candidate that is at all probable."""

from __future__ import annotations

from typing import Final

from markupsafe import Markup

from oomscope.bisect.results.noise import Posterior, percent
from oomscope.bisect.results.result import BisectResult
from oomscope.report.bisect_sentences import short_hash, shortened
from oomscope.report.charts.bars import Bar, bars
from oomscope.report.sentences import count
from oomscope.report.text.bisect_noise import likeliest

SHOWN: Final = 16
"""Candidates with a bar of their own."""
PARTS: Final = 10**6
"""A bar's scale is whole numbers."""
NAME_LENGTH: Final = 80


def posterior_chart(result: BisectResult, posterior: Posterior) -> Markup:
    """Return a bar for each of the likeliest candidates in the order of the line, for all others, and for none."""
    subjects = {place.commit: place.subject for line in result.lines for place in line.places}
    likely = {commit for commit, _ in likeliest(posterior, SHOWN)}
    rows = [
        (f"{short_hash(commit)} {shortened(subjects.get(commit, ''), NAME_LENGTH)}", chance)
        for commit, chance in posterior.rows
        if commit in likely
    ]
    if others := [chance for commit, chance in posterior.rows if commit not in likely]:
        rows.append((count(len(others), "other commit"), sum(others)))
    rows += [("none: the bad end is good", posterior.none), ("the good end is bad already", posterior.already)]
    return bars([_bar(name, chance, posterior) for name, chance in rows], title="Probability of each candidate")


def _bar(name: str, chance: float, posterior: Posterior) -> Bar:
    tone = "bad" if chance >= posterior.confidence else "accent"
    return Bar(label=name, value=round(PARTS * chance), text=percent(chance), tone=tone)
