"""The likeliest candidates of a search whose answers may be wrong."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from oomscope.bisect.results.noise import Posterior, percent
from oomscope.bisect.results.result import BisectResult
from oomscope.report import bisect_sentences
from oomscope.report.text.layout import bar, section, table

SHOWN = 5
BOUND = "The probabilities hold where at most every fifth probe is wrong"
_LEAST = 0.001
_WIDTH = 60


def posterior_sections(result: BisectResult) -> Iterator[RenderableType]:
    """Return the table of the likeliest candidates; nothing for a search without noise."""
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
    yield Text(f"  {BOUND}", style="dim")


def likeliest(found: Posterior, shown: int = SHOWN) -> list[tuple[str, float]]:
    """Return the likeliest candidates, the first one first."""
    rows = sorted(found.rows, key=lambda row: -row[1])[:shown]
    return [row for row in rows if row[1] >= _LEAST]


def _cells(probability: float) -> tuple[str, str]:
    return percent(probability), bar(round(1000 * probability), 1000)
