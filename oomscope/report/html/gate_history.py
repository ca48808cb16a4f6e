"""The trends of the gate as one offline page: what changed at a glance, then each case as a line and a table of nights.

Where there is no room for all of it, each case keeps its youngest nights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from oomscope.gate.ledger.history import Trend, gravest_first
from oomscope.gate.suite.metrics import METRICS
from oomscope.report import gate_sentences
from oomscope.report.charts import marks
from oomscope.report.charts.html import html_chart
from oomscope.report.charts.trend import trend_plot
from oomscope.report.html.page import Script, fitting, render
from oomscope.report.text import gate_history as gate_history_text

TRENDS_SHOWN: Final = 2000
ROWS_SHOWN: Final = 8000
"""Of all tables together: more than any page has room for."""
FEWEST: Final = 5
"""Cases, and nights of each, however little room there is."""


def history_page(trends: Sequence[Trend], *, metric: str) -> str:
    """Return the page of ``metric`` of all ``trends``."""
    return fitting(lambda share: _page(trends, metric, share))


def _page(trends: Sequence[Trend], metric: str, share: float) -> str:
    shown = gravest_first(trends)[: max(FEWEST, int(share * TRENDS_SHOWN))]
    longest = max((len(trend.entries) for trend in shown), default=0)
    nights = max(FEWEST, int(share * min(longest, ROWS_SHOWN // max(1, len(shown)))))
    return render(
        "gate_history.html.j2",
        Script.read("tables.js"),
        title=f"{metric}, night by night",
        heading=gate_history_text.heading(trends),
        meaning=METRICS[metric].meaning,
        trends=[(trend, trend.entries[-nights:], _chart(trend, nights)) for trend in shown],
        statuses=[entry.status for trend in shown for entry in trend.entries],
        unshown=len(trends) - len(shown),
        marks=marks,
        text=gate_history_text,
        gate_sentences=gate_sentences,
        versions={},
    )


def _chart(trend: Trend, nights: int) -> Markup:
    return html_chart(trend_plot(trend, trend.entries[-nights:]))
