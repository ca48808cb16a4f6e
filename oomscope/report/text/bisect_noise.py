"""What a search that weighed its answers believes: the likeliest candidates, and how often probes are wrong."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from oomscope.bisect.results.noise import Posterior, percent
from oomscope.bisect.results.result import BisectResult
from oomscope.report import bisect_sentences
from oomscope.report.text.layout import bar, section, table

SHOWN = 5
BOUND = "What is sure here is so where at most every fifth probe is wrong"
"""How far a stated probability is to be believed (``benchmarks/bisect_sureness.py``). A search cannot see from its own
answers that it is beyond: those that end too early have seen few wrong ones."""
_LEAST = 0.001
_WIDTH = 60


def posterior_sections(result: BisectResult) -> Iterator[RenderableType]:
    """Return the table of the likeliest candidates and a line on the rates; nothing for a search that believed."""
    found = result.posterior
    if found is None:
        return
    subjects = {place.commit: place.subject for line in result.lines for place in line.places}
    rows = table(">Probability", "?", "The first bad commit is")
    for name, probability in likeliest(found):
        text = f"{bisect_sentences.short_hash(name)} {subjects.get(name, '')}".rstrip()
        rows.add_row(*_cells(probability), bisect_sentences.shortened(text, _WIDTH))
    if found.none >= _LEAST:
        rows.add_row(*_cells(found.none), "none: the bad end is good")
    if found.already >= _LEAST:
        rows.add_row(*_cells(found.already), "the good end, or one before it")
    yield section(f"What the answers say together ({percent(found.wanted)} were asked for)", rows)
    yield Text(f"  {rates_text(found)}", style="dim")


def likeliest(found: Posterior, shown: int = SHOWN) -> list[tuple[str, float]]:
    """Return the likeliest candidates, the first one first."""
    rows = sorted(found.rows, key=lambda row: -row[1])[:shown]
    return [row for row in rows if row[1] >= _LEAST]


def rates_text(found: Posterior) -> str:
    """Return how often answers are wrong, as far as the search has learned it."""
    good, bad = (
        f"{percent(mean)} ({percent(low)} to {percent(high)})"
        for mean, (low, high) in (
            (found.false_bad, found.false_bad_interval),
            (found.false_good, found.false_good_interval),
        )
    )
    rates = f"A good commit answers bad in {good} of its probes, a bad one good in {bad}; 95 % intervals"
    return f"{rates}. {BOUND}"


def _cells(probability: float) -> tuple[str, str]:
    return percent(probability), bar(round(1000 * probability), 1000)
