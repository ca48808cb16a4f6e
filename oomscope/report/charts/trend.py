"""A trend as a line over its nights: a mark for each verdict, a gap where nothing was measured, the largest step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from oomscope.gate.ledger.history import Entry, Trend
from oomscope.report import gate_sentences
from oomscope.report.bisect_sentences import short_hash
from oomscope.report.charts.marks import MARKS, in_order, shape_of
from oomscope.report.charts.plot import Axis, Key, Line, Mark, Note, Plot, Tick, axis_of
from oomscope.report.text import gate_history as gate_history_text

NAMED: Final = 5
"""Nights whose day stands below the axis, at most; on a narrow screen the first and the last."""
CROWDED: Final = 60
"""Of more nights the marks of those that are as expected are small."""


def trend_plot(trend: Trend, entries: Sequence[Entry], named: int = NAMED) -> Plot:
    """Return the chart of ``entries``, the nights of ``trend`` for which there is room.

    Args:
        trend: what is shown.
        entries: its nights, oldest first.
        named: how many of them have their day below the axis, at most.
    """
    axis = axis_of(trend.metric, [entry.value for entry in entries if entry.value is not None])
    heights = [axis.low if entry.value is None else entry.value for entry in entries]
    return Plot(
        kind="trend crowded" if len(entries) > CROWDED else "trend",
        title=gate_history_text.title(trend),
        width=len(entries),
        axis=axis,
        lines=[Line(points=[(at + 0.5, heights[at]) for at in run], style="curve") for run in runs(entries)],
        marks=[
            Mark(
                x=at + 0.5,
                y=height,
                style=MARKS[entry.status].style,
                title=gate_history_text.entry_text(trend, entry),
                shape=shape_of(entry.status),
            )
            for at, (entry, height) in enumerate(zip(entries, heights, strict=True))
        ],
        uprights=[(at + 0.5, "missed") for at, entry in enumerate(entries) if entry.value is None],
        notes=_notes(trend, entries, axis),
        legend=[
            Key(text=str(status), style=MARKS[status].style, shape=shape_of(status))
            for status in in_order(entry.status for entry in entries)
        ],
        ticks=_ticks(entries, named),
        caption=f"The axis begins at {axis.names[0]}." if axis.low else "",
    )


def runs(entries: Sequence[Entry]) -> list[list[int]]:
    """Return which nights a line joins: neighbours that were measured under the same conditions."""
    found: list[list[int]] = []
    for at, entry in enumerate(entries):
        if entry.value is None:
            continue
        if at and entries[at - 1].value is not None and entry.change is not None:
            found[-1].append(at)
        else:
            found.append([at])
    return found


def _notes(trend: Trend, entries: Sequence[Entry], axis: Axis) -> list[Note]:
    """Return how large the largest step is, with the commit of its night."""
    step = trend.step
    if step is None or step.after not in entries:
        return []
    x = entries.index(step.after) + 0.5
    culprit = step.after.culprit.commit if step.after.culprit else ""
    commit = culprit or (step.after.standing.commit if step.after.standing else "")
    return [
        Note(
            x=x,
            y=axis.low if step.after.value is None else step.after.value,
            text=gate_sentences.change_text(trend.metric, step.change),
            detail=short_hash(commit) if commit else "",
            is_above=step.change > 0,
            is_left=x > 0.5 * len(entries),
        )
    ]


def _ticks(entries: Sequence[Entry], named: int) -> list[Tick]:
    """Return when some of the nights were, the first and the last among them."""
    last = len(entries) - 1
    every = max(1, -(-last // (named - 1)))
    chosen = [*(at for at in range(0, last, every) if at == 0 or 2 * (last - at) > every), last]
    texts = gate_history_text.day_texts([entries[at] for at in chosen])
    commits = [entries[at].standing for at in chosen]
    return [
        Tick(
            x=at + 0.5,
            text=text,
            detail=short_hash(commit.commit)[:7] if commit else "",
            style="day first" if at == 0 else "day last" if at == last else "day minor",
        )
        for at, text, commit in zip(chosen, texts, commits, strict=True)
    ]
