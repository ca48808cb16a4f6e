"""The trends of the gate as one offline page: a curve for each case, and a table of its nights.

Where there is no room for all of it, each case keeps its youngest nights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from oomscope.gate.history import Entry, Trend
from oomscope.gate.metrics import METRICS
from oomscope.gate.status import Tone, ruling
from oomscope.report import gate_history_text, gate_words
from oomscope.report.bars import Bar, bars
from oomscope.report.html import render
from oomscope.report.page_size import fitting
from oomscope.report.script import Script

TRENDS_SHOWN: Final = 2000
ROWS_SHOWN: Final = 8000
"""Of all tables together: more than any page has room for."""
FEWEST: Final = 5
"""Cases, and nights of each, however little room there is."""
BARS = {Tone.GOOD: "good", Tone.WARN: "quiet", Tone.BAD: "bad"}
"""CSS classes of bars."""


def history_page(trends: Sequence[Trend], *, metric: str) -> str:
    """Return the page of ``metric`` of all ``trends``."""
    return fitting(lambda share: _page(trends, metric, share))


def _page(trends: Sequence[Trend], metric: str, share: float) -> str:
    shown = trends[: max(FEWEST, int(share * TRENDS_SHOWN))]
    longest = max((len(trend.entries) for trend in shown), default=0)
    nights = max(FEWEST, int(share * min(longest, ROWS_SHOWN // max(1, len(shown)))))
    return render(
        "gate_history.html.j2",
        Script.read("tables.js"),
        title=f"{metric}, night by night",
        meaning=METRICS[metric].meaning,
        trends=[(trend, trend.entries[-nights:], _chart(trend, trend.entries[-nights:])) for trend in shown],
        unshown=len(trends) - len(shown),
        text=gate_history_text,
        gate_words=gate_words,
        ruling=ruling,
        versions={},
    )


def _chart(trend: Trend, entries: Sequence[Entry]) -> object:
    """Return a bar a night; what was not measured has none."""
    rows = [
        Bar(
            label=gate_history_text.commit_text(entry) or gate_history_text.night_text(entry),
            value=entry.value,
            text=gate_words.value_text(trend.metric, entry.value),
            tone=BARS[ruling([entry.status]).tone],
        )
        for entry in entries
        if entry.value is not None
    ]
    return bars(rows, title=gate_history_text.title(trend))
