"""A trend of the gate as a line over its nights: a mark for each verdict, a gap where nothing was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from oomscope.gate.ledger.history import Entry, Trend
from oomscope.gate.night.status import GRAVITY, Status, ruling
from oomscope.report.charts.plot import Key, Line, Mark, Plot, Tick, axis_of
from oomscope.report.commands import gate_history, gate_sentences

NAMED: Final = 5
"""Nights whose day stands below the axis, at most."""
_ANSWERED: Final = frozenset({Status.SAME, Status.BETTER, Status.WARN, Status.UNCONFIRMED, Status.WORSE})
"""Verdicts on memory; the others are neither good nor bad."""


def trend_plot(trend: Trend, entries: Sequence[Entry], named: int = NAMED) -> Plot:
    """Return the chart of the nights for which there is room; at most ``named`` have their day below the axis."""
    axis = axis_of(trend.metric, [entry.value for entry in entries if entry.value is not None])
    heights = [axis.low if entry.value is None else entry.value for entry in entries]
    step = trend.step
    statuses = {entry.status for entry in entries}
    return Plot(
        kind="trend",
        title=gate_history.title(trend),
        width=len(entries),
        axis=axis,
        lines=[Line(points=[(at + 0.5, heights[at]) for at in run], style="curve") for run in runs(entries)],
        marks=[
            Mark(
                x=at + 0.5,
                y=height,
                style=f"dot {tone_of(entry.status)}",
                title=gate_history.entry_text(trend, entry),
                name=gate_sentences.change_text(trend.metric, step.change) if step and step.after is entry else "",
            )
            for at, (entry, height) in enumerate(zip(entries, heights, strict=True))
        ],
        uprights=[(at + 0.5, "missed") for at, entry in enumerate(entries) if entry.value is None],
        legend=status_keys(statuses),
        ticks=_ticks(entries, named),
        caption=f"The axis begins at {axis.names[0]}." if axis.low else "",
    )


def tone_of(status: Status) -> str:
    """Return the CSS class of a verdict: ``good``, ``warn``, ``bad``, or ``none`` where it says nothing of memory."""
    return ruling([status]).tone.value if status in _ANSWERED else "none"


def status_keys(statuses: set[Status]) -> list[Key]:
    """Return the legend, gravest first; verdicts that are drawn alike share an entry."""
    names: dict[str, list[str]] = {}
    for status in GRAVITY:
        if status in statuses:
            names.setdefault(tone_of(status), []).append(str(status))
    return [Key(text=", ".join(each), style=tone) for tone, each in names.items()]


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


def _ticks(entries: Sequence[Entry], named: int) -> list[Tick]:
    """Return when some of the nights were, the first and the last among them."""
    last = len(entries) - 1
    every = max(1, -(-last // (named - 1)))
    chosen = [*(at for at in range(0, last, every) if at == 0 or 2 * (last - at) > every), last]
    days = [entries[at].started[:10] for at in chosen]
    if len(set(days)) < len(days):
        days = [gate_history.night_text(entries[at]) for at in chosen]
    return [Tick(x=at + 0.5, text=text) for at, text in zip(chosen, days, strict=True)]
