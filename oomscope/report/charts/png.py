"""Draw a plot into a picture with matplotlib (the ``plots`` extra): the same lines, marks and words as on the page."""

from __future__ import annotations

import re
from importlib import resources
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from oomscope.errors import UsageError
from oomscope.printable import printable
from oomscope.report.charts.plot import Key, Line, Mark, Plot
from oomscope.report.charts.segments import WIDTH, Strip
from oomscope.snapshot.explain.states import PENDING

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

_SHEET: Final = resources.files("oomscope.report.html").joinpath("templates/report.css").read_text(encoding="utf-8")
_OF_PAGE: Final[dict[str, str]] = dict(re.findall(r"--([\w-]+): (#\w{6})\b", _SHEET.partition("@media")[0]))
INK, SOFT, LINE, BAD, WARN = (_OF_PAGE[name] for name in ("ink", "soft", "line", "bad", "warn"))
COLOURS: Final = {name.replace("-", "_"): colour for name, colour in _OF_PAGE.items()} | {
    PENDING: SOFT,
    "none": INK,
    "peak": INK,
    "failed": BAD,
    "oom": BAD,
    "retry": WARN,
    "flush": SOFT,
    "missed": SOFT,
    "curve": SOFT,
    "reserved": INK,
}
"""Colours by CSS class: those of a light page, which are variables of its style sheet."""
MARKERS: Final = {
    "good": "o",
    "warn": "^",
    "bad": "s",
    "none": "o",
    "peak": "o",
    "oom": "X",
    "retry": "^",
    "flush": "D",
}
MARK_POINTS: Final = 5


def require_matplotlib() -> None:
    """Refuse, before any work is done, where no picture can be drawn.

    Raises:
        UsageError: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise UsageError("--png needs matplotlib", remedy="pip install 'oomscope[plots]'")


def draw_plot(panel: Axes, plot: Plot, title: str) -> None:
    """Draw ``plot`` under ``title``, without its legend."""
    for line in plot.lines:
        _draw_line(panel, line, plot)
    for x, style in plot.uprights:
        panel.axvline(x, color=colour_of(style), linestyle=":", linewidth=1.2, zorder=1)
    if plot.level and plot.is_level_drawn:
        panel.axhline(plot.level, color=BAD, linestyle="--", linewidth=1)
        panel.annotate(plot.level_text, (0, plot.level), va="bottom", fontsize=8, color=BAD)
    for mark in plot.marks:
        _draw_mark(panel, mark)
    if plot.ticks:
        panel.set_xticks([tick.x for tick in plot.ticks], [tick.text for tick in plot.ticks], fontsize=8)
    panel.set_xlim(0, plot.width)
    panel.set_yticks(plot.axis.ticks, list(plot.axis.names), fontsize=8)
    panel.set_ylim(plot.axis.low, plot.axis.top + 0.06 * (plot.axis.top - plot.axis.low))
    panel.grid(axis="y", color=LINE, zorder=0)
    panel.set_axisbelow(True)
    panel.set_title(printable(title), fontsize=10, loc="left", parse_math=False)
    panel.spines[["top", "right"]].set_visible(False)


def draw_strip(panel: Axes, strip: Strip, title: str) -> None:
    """Draw segments line by line, from the top."""
    for name, boxes in strip.shapes().items():
        for line in sorted({line for line, _, _ in boxes}):
            spans = [(left, right - left) for at_line, left, right in boxes if at_line == line]
            panel.broken_barh(spans, (line + 0.1, 0.8), facecolors=COLOURS[name], linewidth=0)
    for line, x in strip.walls():
        panel.plot([x, x], [line + 0.05, line + 0.95], color=INK, linewidth=0.6)
    panel.set_xlim(0, WIDTH)
    panel.set_ylim(strip.lines, 0)
    panel.set_xticks([])
    panel.set_yticks([])
    panel.set_xlabel(strip.caption, fontsize=8)
    panel.set_title(printable(title), fontsize=10, loc="left", parse_math=False)
    panel.spines[["top", "right"]].set_visible(False)


def legend_handle(key: Key) -> Artist:
    """Return what stands beside the text of ``key`` in a legend."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    colour = colour_of(key.style)
    if tone := next((name for name in key.style.split() if name in MARKERS), ""):
        return Line2D([], [], linestyle="none", **_marker(tone))
    return Line2D([], [], color=colour) if "line" in key.style.split() else Patch(color=colour)


def colour_of(style: str) -> str:
    """Return the colour of the last CSS class in ``style`` that has one."""
    return next((COLOURS[name] for name in reversed(style.split()) if name in COLOURS), INK)


def _draw_line(panel: Axes, line: Line, plot: Plot) -> None:
    if not line.points:
        return
    x, y = np.array(line.points, dtype=float).T
    step: Any = "post" if line.is_stepped else None
    if line.is_filled:
        panel.fill_between(x, y, plot.axis.low, step=step, color=colour_of(line.style), linewidth=0)
    else:
        drawstyle: Any = "steps-post" if line.is_stepped else "default"
        panel.plot(x, y, color=colour_of(line.style), linewidth=1.2, drawstyle=drawstyle, zorder=2)


def _draw_mark(panel: Axes, mark: Mark) -> None:
    tone = next((name for name in mark.style.split() if name in MARKERS), "peak")
    panel.plot([mark.x], [mark.y], linestyle="none", clip_on=False, zorder=3, **_marker(tone))
    if mark.name:
        panel.annotate(mark.name, (mark.x, mark.y), textcoords="offset points", xytext=(5, 5), fontsize=8)


def _marker(tone: str) -> dict[str, Any]:
    """Return the style of a point; each tone has its own marker shape, so that colour is never the only cue."""
    colour = colour_of(tone)
    return {
        "marker": MARKERS[tone],
        "markersize": MARK_POINTS,
        "markeredgecolor": colour,
        "markerfacecolor": "white" if tone == "none" else colour,
    }
