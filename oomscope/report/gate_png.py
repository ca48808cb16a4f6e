"""The trends of the gate as one picture, a panel a case, what is worse first. Drawn by matplotlib (``plots`` extra).

It shows what the page shows: :mod:`oomscope.report.trend_chart`.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from oomscope.gate.history import Trend, gravest_first
from oomscope.gate.status import Status
from oomscope.printable import printable
from oomscope.report import gate_history_text, gate_words
from oomscope.report.bisect_words import short_hash
from oomscope.report.gate_marks import MARKS, in_order
from oomscope.report.sweep_png import BAD, GOOD, INK
from oomscope.report.trend_axis import Axis, axis_of
from oomscope.report.trend_chart import runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

SOFT: Final = "#5b6472"
LINE: Final = "#dfe2e7"
COLOURS: Final = {"good": GOOD, "warn": "#8a5a00", "bad": BAD, "none": INK}
"""As in ``templates/report.css``."""
WIDE: Final = 12
HIGH: Final = 2.8
"""Inches of the picture, and of each case in it."""
LEGEND: Final = 0.7
"""Inches for title and legend."""
NAMED: Final = 16
"""At most so many nights have their day and commit below them."""
PANELS: Final = 40
"""More cases than that make no picture that anybody can read; the first are drawn, and the title says so."""
MARK: Final = 9
"""Points of a mark."""


def history_picture(trends: Sequence[Trend]) -> bytes:
    """Return a PNG file of all ``trends``, of one metric."""
    out = io.BytesIO()
    history_figure(trends).savefig(out, format="png", dpi=120)
    return out.getvalue()


def history_figure(trends: Sequence[Trend]) -> Figure:
    """Return the same before it is a file."""
    from matplotlib.figure import Figure

    shown = gravest_first(trends)[:PANELS]
    figure = Figure(figsize=(WIDE, LEGEND + HIGH * max(1, len(shown))), layout="constrained")
    rest = f"; {len(shown)} of them are shown" if len(shown) < len(trends) else ""
    figure.suptitle(f"{gate_history_text.heading(trends)}{rest}", color=INK, fontsize=11)
    for panel, trend in zip(figure.subplots(max(1, len(shown)), 1, squeeze=False)[:, 0], shown, strict=False):
        _draw(panel, trend)
    _name_marks(figure, in_order(entry.status for trend in shown for entry in trend.entries))
    return figure


def _name_marks(figure: Figure, statuses: Sequence[Status]) -> None:
    """Write below all panels what each mark stands for, of those that occur."""
    from matplotlib.lines import Line2D

    marks = [_marked(Line2D([], [], linestyle="none"), status) for status in statuses]
    figure.legend(marks, [str(status) for status in statuses], loc="outside lower left", ncols=6, frameon=False)


def _marked(line: Line2D, status: Status) -> Line2D:
    """Draw the mark of ``status`` at the points of ``line``."""
    from matplotlib.path import Path

    mark = MARKS[status]
    colour = COLOURS[mark.tone]
    corners = [(x, -y) for x, y in mark.outline]
    line.set_marker(Path([*corners, corners[0]], closed=True))
    line.set_markersize(MARK)
    line.set_markeredgecolor(colour)
    line.set_markerfacecolor(colour if mark.is_filled else "white")
    return line


def _draw(panel: Axes, trend: Trend) -> None:
    """Draw the nights of a trend: joined where neighbours can be compared, at the foot where nothing was measured."""
    entries = trend.entries
    axis = axis_of(trend.metric, trend.values)
    for run in runs(entries):
        panel.plot(run, [entries[at].value or 0 for at in run], color=SOFT, linewidth=1.2, zorder=2)
    for at, entry in enumerate(entries):
        if entry.value is None:
            panel.axvline(at, color=SOFT, linestyle="--", linewidth=0.8, zorder=1)
        height = axis.low if entry.value is None else entry.value
        (point,) = panel.plot([at], [height], linestyle="none", clip_on=False, zorder=3)
        _marked(point, entry.status)
    _name_nights(panel, trend)
    panel.set_xlim(-0.5, len(entries) - 0.5)
    panel.set_yticks(axis.ticks, list(axis.names), fontsize=8)
    panel.set_ylim(axis.low, axis.top + 0.1 * (axis.top - axis.low))
    panel.grid(axis="y", color=LINE, zorder=0)
    panel.set_title(printable(_title(trend, axis)), fontsize=10, loc="left", parse_math=False)
    panel.spines[["top", "right"]].set_visible(False)
    _tell_step(panel, trend)


def _title(trend: Trend, axis: Axis) -> str:
    cut = f"; the axis begins at {axis.names[0]}" if axis.low else ""
    return f"{gate_history_text.title(trend)}{cut}"


def _name_nights(panel: Axes, trend: Trend) -> None:
    """Write below some of the nights the day and the commit."""
    every = max(1, -(-len(trend.entries) // NAMED))
    named = range(0, len(trend.entries), every)
    commits = [entry.standing.commit if entry.standing else "" for entry in trend.entries]
    texts = [f"{trend.entries[at].started[5:10]}\n{short_hash(commits[at])[:7]}" for at in named]
    panel.set_xticks([*named], texts, fontsize=8)


def _tell_step(panel: Axes, trend: Trend) -> None:
    """Write beside the largest step how large it is."""
    step = trend.step
    if step is None or step.after.value is None:
        return
    at = trend.entries.index(step.after)
    is_late, is_rise = at >= len(trend.entries) / 2, step.change > 0
    panel.annotate(
        gate_words.change_text(trend.metric, step.change),
        (at, step.after.value),
        textcoords="offset points",
        xytext=(0, 7 if is_rise else -8),
        ha="right" if is_late else "left",
        va="bottom" if is_rise else "top",
        fontsize=9,
        fontweight="bold",
        color=INK,
    )
