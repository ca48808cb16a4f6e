"""What a search believes where answers may be wrong: a bar for each candidate that is at all probable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from markupsafe import Markup

from oomscope.bisect.result import BisectResult
from oomscope.report import bisect_words
from oomscope.report.bars import Bar, bars
from oomscope.report.words import count

if TYPE_CHECKING:
    from oomscope.bisect.noise import Posterior

SHOWN: Final = 16
"""Candidates with a bar of their own."""
PARTS: Final = 10**6
"""A bar's scale is whole numbers."""
NAME_LENGTH: Final = 80


def posterior_chart(result: BisectResult, posterior: Posterior) -> Markup:
    """Return a bar for each of the likeliest candidates in the order of the line, for all others, and for none."""
    subjects = {place.commit: place.subject for line in result.lines for place in line.places}
    likely = {commit for commit, _ in sorted(posterior.rows, key=lambda row: -row[1])[:SHOWN]}
    rows = [
        (f"{bisect_words.short_hash(commit)} {bisect_words.shortened(subjects.get(commit, ''), NAME_LENGTH)}", chance)
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


def percent(chance: float) -> str:
    """Return ``93.1 %``; what is not quite 0 or 1 does not look as if it were."""
    if 0 < chance < 0.001:
        return "< 0.1 %"
    return f"{100 * chance:.1f} %" if chance <= 0.9995 or chance == 1 else "> 99.9 %"
