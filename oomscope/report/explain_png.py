"""Timeline and map of segments as one picture, for a chat, an issue or a slide; drawn by matplotlib (``plots`` extra).

It shows the same bins and the same folded strip as the page.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

import numpy as np

from oomscope.errors import UsageError
from oomscope.report import explain_words as words
from oomscope.report.area import ticks
from oomscope.report.segment_chart import GAP, MOST_LINES, PENDING, WIDTH, Strip, strip_of
from oomscope.snapshot.drawing.bins import Bins
from oomscope.snapshot.drawing.draw import Drawing
from oomscope.snapshot.explaining.explanation import DeviceExplanation, Explanation
from oomscope.snapshot.explaining.rank_set import RankSet
from oomscope.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS: Final = 1200
"""Bins drawn."""
COLOURS: Final = {
    "parameter": "#3b6fb6",
    "optimizer_state": "#7a5ba8",
    "main_gradient": "#a8632f",
    "gradient": "#d98a2b",
    "input": "#2c8c8c",
    "activation": "#4c9a4c",
    "workspace": "#8a8f3a",
    "communication": "#c0568f",
    "temporary": "#c9473e",
    "unknown": "#9aa1ab",
    PENDING: "#5b6472",
    GAP: "#dde1e7",
}
"""As in ``templates/explain.css``."""
INK: Final = "#1d2129"
BAD: Final = "#b3362b"
WIDE: Final = 11
"""Inches of the picture."""
TALL: Final = 4.2
"""Inches of a timeline, and of a map with all lines that one may have."""
LOW: Final = 1.4
"""Inches of the lowest map."""


def require_matplotlib() -> None:
    """Refuse, before any work is done, where no picture can be drawn.

    Raises:
        UsageError: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise UsageError("--png needs matplotlib", remedy="pip install 'oomscope[plots]'")


def explain_picture(found: Explanation | RankSet, drawings: Sequence[Drawing]) -> bytes:
    """Return a PNG file: for each device its timeline and its segments, as far as there are any.

    Raises:
        UsageError: there is nothing to draw.
    """
    from matplotlib.figure import Figure

    explanation = found.worst if isinstance(found, RankSet) else found
    panels = [panel for pair in zip(explanation.devices, drawings, strict=True) for panel in _panels(*pair)]
    if not panels:
        raise UsageError(
            "there is nothing to draw: the file has neither events nor segments",
            where=explanation.file,
            remedy="leave --png out",
        )
    heights = [_inches(what) for _, what in panels]
    figure = Figure(figsize=(WIDE, sum(heights)), layout="constrained")
    figure.suptitle(PurePath(explanation.file).name, color=INK)
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, (device, what) in zip(axes, panels, strict=True):
        if isinstance(what, Bins):
            _draw_timeline(axis, device, what)
        else:
            _draw_strip(axis, device, what)
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=120)
    return out.getvalue()


def _panels(device: DeviceExplanation, drawing: Drawing) -> list[tuple[DeviceExplanation, Bins | Strip]]:
    panels: list[tuple[DeviceExplanation, Bins | Strip]] = []
    if len(drawing.bins) > 1:
        panels.append((device, drawing.bins.coarser(max(1, -(-len(drawing.bins) // COLUMNS)))))
    if drawing.plan and drawing.plan.segments:
        panels.append((device, strip_of(drawing.plan)))
    return panels


def _inches(what: Bins | Strip) -> float:
    return max(LOW, TALL * what.lines / MOST_LINES) if isinstance(what, Strip) else TALL


def _draw_timeline(axis: Axes, device: DeviceExplanation, bins: Bins) -> None:
    """Draw the stack, a step for each bin, and what was reserved."""
    edges = np.append(np.arange(len(bins)) * bins.per_bin, bins.total)
    below = np.zeros(len(bins))
    for name, curve in bins.requested.items():
        axis.stairs(
            below + curve, edges, baseline=below, fill=True, color=COLOURS[name], label=words.category_text(name)
        )
        below = below + curve
    axis.stairs(bins.reserved, edges, baseline=None, color=INK, linewidth=1, label="reserved")
    top = max(int(below.max()), int(bins.reserved.max()))
    if device.available_bytes and device.available_bytes <= 4 * top:
        axis.axhline(device.available_bytes, color=BAD, linestyle="--", linewidth=1, label="may use")
        top = max(top, device.available_bytes)
    if device.failure is not None:
        axis.axvline(device.failure.event + 0.5, color=BAD, linestyle=":", linewidth=1.5, label="failed allocation")
    name = "peak" if device.peak.event >= 0 else "most after an event"
    peak = f"{name} {format_size(int(below[bins.peak]))} at event {int(bins.event[bins.peak]):,}"
    axis.plot(bins.event[bins.peak] + 0.5, below[bins.peak], "o", color=INK, markersize=4, label=peak)
    axis.set_yticks(ticks(top), [format_size(tick, digits=1) if tick else "0" for tick in ticks(top)])
    axis.set_xlim(0, bins.total)
    axis.set_ylim(0, top * 1.02)
    each = f", {bins.per_bin:,} a column: the moment of most requested memory" if bins.per_bin > 1 else ""
    axis.set_xlabel(f"events{each}")
    axis.set_title(f"device {device.index}: {words.status_text(device)}", fontsize=10, loc="left")
    _tidy(axis, reverse=True)


def _draw_strip(axis: Axes, device: DeviceExplanation, strip: Strip) -> None:
    """Draw the segments line by line, from the top."""
    boxes: dict[str, list[tuple[int, tuple[float, float]]]] = {}
    walls, at = [], 0
    for piece in strip.pieces:
        walls.append(at)
        for tile in piece.tiles:
            name = PENDING if tile.is_pending else tile.category
            for line, left, right in strip.boxes(at, tile.size):
                boxes.setdefault(name, []).append((line, (left, right - left)))
            at += tile.size
    for name, held in boxes.items():
        for line in sorted({line for line, _ in held}):
            spans = [span for at_line, span in held if at_line == line]
            axis.broken_barh(spans, (line + 0.1, 0.8), facecolors=COLOURS[name], linewidth=0)
    for wall in walls:
        line, left, _ = next(strip.boxes(wall, 1))
        axis.plot([left, left], [line + 0.05, line + 0.95], color=INK, linewidth=0.6)
    for name, size in sorted(strip.totals.items(), key=lambda item: -item[1]):
        said = {GAP: "free", PENDING: "waiting for a stream"}.get(name, words.category_text(name))
        axis.fill_between([], [], color=COLOURS[name], label=f"{said} {format_size(size)}")
    axis.set_xlim(0, WIDTH)
    axis.set_ylim(strip.lines, 0)
    axis.set_xticks([])
    axis.set_yticks([])
    axis.set_xlabel(strip.caption(), fontsize=8)
    axis.set_title(f"device {device.index}: segments {words.when_text(device)}, to scale", fontsize=10, loc="left")
    _tidy(axis)


def _tidy(axis: Axes, *, reverse: bool = False) -> None:
    """Put the legend beside the panel, for a stack in its order from the top."""
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8, reverse=reverse)
    axis.spines[["top", "right"]].set_visible(False)
