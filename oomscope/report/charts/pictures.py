"""The pictures that commands write with ``--png``: a snapshot, the trends of the gate, a sweep."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from oomscope.errors import UsageError
from oomscope.gate.ledger.history import Trend, gravest_first
from oomscope.probe.tuning.sweep import Sweep
from oomscope.report.charts.plot import Plot
from oomscope.report.charts.png import INK, draw_plot, draw_strip, legend_handle
from oomscope.report.charts.segments import MOST_LINES, Strip, strip_of
from oomscope.report.charts.sweep import sweep_plot
from oomscope.report.charts.timeline import timeline_plot
from oomscope.report.charts.trend import status_keys, trend_plot
from oomscope.report.commands import explain_sentences, gate_history
from oomscope.report.commands.sweep import tally_text
from oomscope.snapshot.explain.drawing import Drawing
from oomscope.snapshot.explain.explanation import DeviceExplanation, Explanation
from oomscope.snapshot.explain.rank_set import RankSet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDE: Final = 12
"""Inches of a picture."""
COLUMNS: Final = 1200
"""Bins of a timeline."""
TALL: Final = 4.2
"""Inches of a timeline, and of a map with all lines that one may have."""
LOW: Final = 1.4
"""Inches of the lowest map."""
HIGH: Final = 2.8
"""Inches of a trend."""
TITLE: Final = 0.7
"""Inches for title and legend."""
NAMED: Final = 16
"""Most nights with their day below them."""
PANELS: Final = 40
"""Most cases in a picture that can still be read; the first are drawn, and the title says so."""


def explain_picture(found: Explanation | RankSet, drawings: Sequence[Drawing]) -> bytes:
    """Return a PNG file: for each device its timeline and its segments, if there are any.

    Raises:
        UsageError: there is nothing to draw.
    """
    explanation = found.worst
    panels = [panel for pair in zip(explanation.devices, drawings, strict=True) for panel in _panels(*pair)]
    if not panels:
        raise UsageError(
            "there is nothing to draw: the file has neither events nor segments",
            where=explanation.file,
            remedy="leave --png out",
        )
    heights = [max(LOW, TALL * what.lines / MOST_LINES) if isinstance(what, Strip) else TALL for _, what in panels]
    figure = _figure(PurePath(explanation.file).name, sum(heights))
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, (title, what) in zip(axes, panels, strict=True):
        if isinstance(what, Plot):
            draw_plot(axis, what, title)
            axis.set_xlabel(what.caption, fontsize=8)
        else:
            draw_strip(axis, what, title)
        keys = what.legend if isinstance(what, Plot) else what.legend()
        axis.legend(
            [legend_handle(key) for key in keys],
            [f"{key.text} {key.size}" for key in keys],
            loc="center left",
            bbox_to_anchor=(1.0, 0.5),
            frameon=False,
            fontsize=8,
        )
    return _saved(figure)


def _panels(device: DeviceExplanation, drawing: Drawing) -> list[tuple[str, Plot | Strip]]:
    panels: list[tuple[str, Plot | Strip]] = []
    if len(drawing.bins) > 1:
        title = f"device {device.index}: {explain_sentences.status_text(device)}"
        panels.append((title, timeline_plot(drawing, COLUMNS, available=device.available_bytes)))
    if drawing.plan and drawing.plan.segments:
        title = f"device {device.index}: segments {explain_sentences.when_text(device)}, to scale"
        panels.append((title, strip_of(drawing.plan)))
    return panels


def history_picture(trends: Sequence[Trend]) -> bytes:
    """Return a PNG file of all ``trends``, of one metric: a panel a case, what is worse first."""
    shown = gravest_first(trends)[:PANELS]
    rest = f"; {len(shown)} of them are shown" if len(shown) < len(trends) else ""
    figure = _figure(f"{gate_history.heading(trends)}{rest}", TITLE + HIGH * max(1, len(shown)))
    for panel, trend in zip(figure.subplots(max(1, len(shown)), 1, squeeze=False)[:, 0], shown, strict=False):
        plot = trend_plot(trend, trend.entries, NAMED)
        draw_plot(panel, plot, f"{plot.title}. {plot.caption}" if plot.caption else plot.title)
    keys = status_keys({entry.status for trend in shown for entry in trend.entries})
    handles, texts = [legend_handle(key) for key in keys], [key.text for key in keys]
    figure.legend(handles, texts, loc="outside lower left", ncols=6, frameon=False)
    return _saved(figure)


def sweep_picture(sweep: Sweep, *, title: str) -> bytes:
    """Return a PNG file: bytes against time with the best combinations joined.

    Raises:
        UsageError: nothing was measured.
    """
    plot = sweep_plot(sweep)
    if plot is None:
        raise UsageError("there is nothing to draw: no combination was measured", where=title, remedy="leave --png out")
    figure = _figure(f"{title} · {tally_text(sweep)}", TALL + TITLE)
    panel = figure.subplots()
    draw_plot(panel, plot, plot.title)
    panel.set_xlabel("estimated time a sequence over the quickest")
    panel.xaxis.set_major_formatter("{x:.0%}")
    return _saved(figure)


def _figure(title: str, inches: float) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDE, inches), layout="constrained")
    figure.suptitle(title, color=INK, fontsize=11)
    return figure


def _saved(figure: Figure) -> bytes:
    out = io.BytesIO()
    with warnings.catch_warnings():  # a path in a script that the font lacks is drawn as boxes
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from (current )?font", UserWarning)
        figure.savefig(out, format="png", dpi=120)
    return out.getvalue()
