"""Answers every question of a search, one after the other."""

from __future__ import annotations

from collections.abc import Callable

from oomscope.bisect.search.line import Answer, Search, SearchFinding
from oomscope.bisect.search.steps import StepSearch
from oomscope.units import Bytes


def found_by(search: Search, answer: Callable[[int], Answer]) -> SearchFinding:
    """Return what a search finds that is given the answers of ``answer``."""
    while (position := search.wanted) is not None:
        search = search.with_answer(position, answer(position))
    return search.found


def run(search: StepSearch, measure: Callable[[int], Bytes | None]) -> StepSearch:
    """Return the last state of a search that is given what ``measure`` returns; None: untestable."""
    while (position := search.wanted) is not None:
        search = search.with_answer(position, measure(position))
    return search
