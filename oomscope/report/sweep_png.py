"""A sweep as one picture: bytes against time with the best combinations joined, and the grid as a heat map.

Drawn by matplotlib (``plots`` extra); it shows what the page shows.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final

import numpy as np

from oomscope.errors import UsageError
from oomscope.probe.sweep import Sweep
from oomscope.report import sweep_grid, words
from oomscope.report.advise_text import outcome_text
from oomscope.report.area import ticks
from oomscope.report.sweep_text import tally_text
from oomscope.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GOOD: Final = "#2a7f49"
BAD: Final = "#b3362b"
INK: Final = "#1d2129"
"""As in ``templates/report.css``."""
WIDE: Final = 12
LOW: Final = 4.6
"""Inches of the picture, at least."""
LINE: Final = 0.34
"""Inches of a line of the heat map."""


def sweep_picture(sweep: Sweep, *, title: str) -> bytes:
    """Return a PNG file.

    Raises:
        UsageError: nothing was measured.
    """
    from matplotlib.figure import Figure

    if not any(row.variant.requested_bytes is not None for row in sweep.rows):
        raise UsageError("there is nothing to draw: no combination was measured", where=title, remedy="leave --png out")
    figure = Figure(figsize=(WIDE, max(LOW, LINE * len(sweep_grid.lines_of(sweep)))), layout="constrained")
    figure.suptitle(f"{title} · {tally_text(sweep)}", color=INK, fontsize=11)
    timed = any(row.slowdown is not None for row in sweep.rows)
    axes = figure.subplots(1, 2 if timed else 1, squeeze=False)[0]
    if timed:
        _draw_points(axes[0], sweep)
    _draw_grid(axes[-1], sweep)
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=120)
    return out.getvalue()


def _draw_points(axis: Axes, sweep: Sweep) -> None:
    top = 0
    best: list[tuple[float, int]] = []
    for number, row in enumerate(sweep.rows, start=1):
        size, time = row.variant.requested_bytes, row.slowdown
        if size is None or time is None:
            continue
        top = max(top, size)
        axis.plot(100 * time, size, "o", color=GOOD if row.variant.fits else BAD, alpha=1 if row.is_on_front else 0.45)
        if row.is_on_front:
            best.append((100 * time, size))
            axis.annotate(str(number), (100 * time, size), textcoords="offset points", xytext=(5, 5), fontsize=8)
    best.sort()
    axis.step([time for time, _ in best], [size for _, size in best], where="post", color=INK, linestyle=":")
    if sweep.available_bytes and sweep.available_bytes <= 2 * top:
        axis.axhline(sweep.available_bytes, color=BAD, linestyle="--", linewidth=1)
        axis.annotate("may use", (0, sweep.available_bytes), va="bottom", fontsize=8, color=BAD)
        top = max(top, sweep.available_bytes)
    axis.set_yticks(ticks(top), [format_size(tick, digits=1) if tick else "0" for tick in ticks(top)])
    axis.set_ylim(0, top * 1.06)
    axis.set_xlabel("estimated time a sequence over the quickest, %")
    axis.set_title("peak of requested memory against time", fontsize=10, loc="left")
    axis.spines[["top", "right"]].set_visible(False)


def _draw_grid(axis: Axes, sweep: Sweep) -> None:
    lines, names = sweep_grid.lines_of(sweep), sweep_grid.short_names(sweep)
    shares = sweep_grid.shares(sweep.rows, sweep_grid.requested_bytes)
    values = np.array([[shares.get(row.values, np.nan) for row in line.cells] for line in lines])
    axis.imshow(values, cmap="Blues", vmin=-0.15, vmax=1.6, aspect="auto")
    for at, line in enumerate(lines):
        for column, row in enumerate(line.cells):
            size = row.variant.requested_bytes
            text = outcome_text(row.variant) if size is None else format_size(size)
            text += "" if row.slowdown is None else f"\n{words.slowdown_text(row.slowdown)}"
            colour = INK if row.variant.fits or size is None else BAD
            axis.text(column, at, text, ha="center", va="center", fontsize=7, color=colour)
    axis.set_xticks(range(len(sweep.axes[-1].values)), [*sweep.axes[-1].values])
    axis.set_yticks(range(len(lines)), [", ".join(line.values) for line in lines], fontsize=8)
    axis.set_xlabel(names[-1])
    axis.set_ylabel(", ".join(names[:-1]))
    axis.set_title("peak of requested memory and time; red does not fit", fontsize=10, loc="left")
