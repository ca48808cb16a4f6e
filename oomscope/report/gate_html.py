"""The trends of the gate as one offline page: a curve for each case, and a table of its nights."""

from __future__ import annotations

from collections.abc import Sequence

from oomscope.gate.history import Trend
from oomscope.gate.metrics import METRICS
from oomscope.gate.status import Tone, ruling
from oomscope.report import gate_history_text, gate_words
from oomscope.report.bars import Bar, bars
from oomscope.report.html import render
from oomscope.report.script import Script

BARS = {Tone.GOOD: "good", Tone.WARN: "quiet", Tone.BAD: "bad"}
"""CSS classes of bars."""


def history_page(trends: Sequence[Trend], *, metric: str) -> str:
    """Return the page of ``metric`` of all ``trends``."""
    return render(
        "gate_history.html.j2",
        Script.read("tables.js"),
        title=f"{metric}, night by night",
        meaning=METRICS[metric].meaning,
        trends=[(trend, _chart(trend)) for trend in trends],
        text=gate_history_text,
        gate_words=gate_words,
        ruling=ruling,
        versions={},
    )


def _chart(trend: Trend) -> object:
    """Return a bar a night; what was not measured has none."""
    rows = [
        Bar(
            label=gate_history_text.commit_text(entry) or gate_history_text.night_text(entry),
            value=entry.value,
            text=gate_words.value_text(trend.metric, entry.value),
            tone=BARS[ruling([entry.status]).tone],
        )
        for entry in trend.entries
        if entry.value is not None
    ]
    return bars(rows, title=gate_history_text.title(trend))
