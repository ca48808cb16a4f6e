"""What is odd about the bands that a case was compared with: they tell nothing before they fail, or nothing fails.

A share of 100 % or more lets what was accepted double, or of what is worse when it shrinks lets all of it go. A size of
the whole card is one that nothing on it can grow by. Both are allowed, for somebody may want to be told alone; but a
slip of the keyboard looks the same, so it is said.
"""

from __future__ import annotations

from collections.abc import Iterator

from oomscope.gate.compare import MetricRow
from oomscope.gate.metrics import METRICS
from oomscope.gate.suite import Case
from oomscope.units import format_size


def band_notes(case: Case, rows: tuple[MetricRow, ...], card_bytes: int | None) -> tuple[str, ...]:
    """Return a sentence for each odd band of ``rows``, which were measured on a card of ``card_bytes``."""
    return tuple(note for row in rows for note in _notes(case, row, card_bytes))


def _notes(case: Case, row: MetricRow, card_bytes: int | None) -> Iterator[str]:
    if row.warn is None or row.fail is None:
        return
    if row.warn > row.fail:
        warn, fail = _size(row.name, row.warn), _size(row.name, row.fail)
        yield f"{row.name} warns beyond {warn} and fails beyond {fail}, so that nothing is told before it fails"
    said = case.bands.get(row.name)
    metric = METRICS[row.name]
    if said is None or said.fail is None:
        return
    width = f"its band is {_size(row.name, row.fail)}"
    if said.fail.relative >= 1:
        what = "may double before it fails" if metric.is_worse_when_larger else "never fails"
        yield f"{row.name} {what}: {width}, no less than was expected"
    elif metric.is_of_the_card and card_bytes is not None and row.fail >= card_bytes:
        yield f"{row.name} never fails: {width}, on a card of {format_size(card_bytes)}"


def _size(metric: str, value: int) -> str:
    return format_size(value) if METRICS[metric].is_bytes else f"{value:,}"
