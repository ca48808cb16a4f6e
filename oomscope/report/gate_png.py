"""The trends of the gate as one picture, a panel a case. Drawn by matplotlib (``plots`` extra)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from oomscope.gate.history import Trend
from oomscope.gate.status import ruling
from oomscope.printable import printable
from oomscope.report import gate_history_text, gate_words
from oomscope.report.area import ticks
from oomscope.report.bisect_words import short_hash
from oomscope.report.sweep_png import BAD, GOOD, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDE: Final = 12
HIGH: Final = 2.8
"""Inches of the picture, and of each case in it."""
NAMED: Final = 16
"""At most so many nights have their commit below them."""
UNMEASURED: Final = "|"
"""Stands on the axis; nights that pass are dots, all others crosses, so that colour says nothing alone."""
PANELS: Final = 40
"""More cases than that make no picture that anybody can read; the first are drawn, and the title says so."""


def history_picture(trends: Sequence[Trend], *, metric: str) -> bytes:
    """Return a PNG file of ``metric`` of all ``trends``."""
    from matplotlib.figure import Figure

    drawn = trends[:PANELS]
    figure = Figure(figsize=(WIDE, HIGH * max(1, len(drawn))), layout="constrained")
    rest = f", {len(drawn)} of {len(trends)} cases" if len(drawn) < len(trends) else ""
    figure.suptitle(f"{metric}, night by night{rest}", color=INK, fontsize=11)
    for axis, trend in zip(figure.subplots(max(1, len(drawn)), 1, squeeze=False)[:, 0], drawn, strict=False):
        _draw(axis, trend)
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=120)
    return out.getvalue()


def _draw(axis: Axes, trend: Trend) -> None:
    """Draw the measured nights of a trend, joined where they can be compared."""
    places = [(at, entry) for at, entry in enumerate(trend.entries) if entry.value is not None]
    top = max([1, *trend.values])
    for (left, before), (right, entry) in pairwise(places):
        if entry.change is not None:
            axis.plot([left, right], [before.value or 0, entry.value or 0], color=INK, linewidth=1)
    for at, entry in enumerate(trend.entries):
        passes = ruling([entry.status]).passes
        shape = UNMEASURED if entry.value is None else "o" if passes else "X"
        axis.plot(at, entry.value or 0, shape, color=GOOD if passes else BAD, clip_on=False)
    every = -(-len(trend.entries) // NAMED)
    named = range(0, len(trend.entries), max(1, every))
    commits = [entry.standing.commit if entry.standing else entry.started for entry in trend.entries]
    axis.set_xticks([*named], [short_hash(commits[at]) for at in named], fontsize=8)
    axis.set_yticks(ticks(top), [gate_words.value_text(trend.metric, tick) for tick in ticks(top)], fontsize=8)
    axis.set_ylim(0, top * 1.06)
    axis.set_title(printable(gate_history_text.title(trend)), fontsize=10, loc="left", parse_math=False)
    axis.spines[["top", "right"]].set_visible(False)
