"""A trend as a line over its nights: a mark for each verdict, a gap where nothing was measured, the largest step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from xml.etree import ElementTree as ET

from markupsafe import Markup

from oomscope.gate.history import Entry, Trend
from oomscope.report import gate_history_text, gate_words
from oomscope.report.area import SIDE
from oomscope.report.bisect_words import short_hash
from oomscope.report.gate_marks import drawn, in_order
from oomscope.report.markup import box, figure, markup, share
from oomscope.report.trend_axis import Axis, axis_of

NAMED: Final = 5
"""Nights whose day stands below the axis, at most; on a narrow screen the first and the last."""
CROWDED: Final = 60
"""Of more nights the marks of those that are as expected are small."""


def trend_chart(trend: Trend, entries: Sequence[Entry]) -> Markup:
    """Return the chart of ``entries``, the nights of ``trend`` for which there is room."""
    chart = figure("trend", gate_history_text.title(trend))
    axis = axis_of(trend.metric, [entry.value for entry in entries if entry.value is not None])
    legend = box(chart, "legend", tag="div")
    for status in in_order(entry.status for entry in entries):
        key = box(legend, "key")
        key.append(drawn(status))
        ET.SubElement(key, "span").text = str(status)
    plot = box(chart, "plot crowded" if len(entries) > CROWDED else "plot", tag="div")
    for tick, name in zip(axis.ticks, axis.names, strict=True):
        line = box(plot, "grid", bottom=share(axis.share(tick), 1))
        box(line, "tick", name)
    svg = ET.SubElement(plot, "svg", {"class": "lines", "viewBox": f"0 0 {SIDE} {SIDE}", "preserveAspectRatio": "none"})
    for run in runs(entries):
        points = " ".join(
            f"{SIDE * place(at, entries):.1f},{SIDE * (1 - axis.share(entries[at].value or 0)):.1f}" for at in run
        )
        ET.SubElement(svg, "polyline", {"class": "curve", "points": points})
    for at, entry in enumerate(entries):
        _add_mark(plot, trend, entry, left=share(place(at, entries), 1), axis=axis)
    _tell_step(plot, trend, entries, axis)
    _name_nights(chart, entries)
    if axis.low:
        box(chart, "soft", f"The axis begins at {axis.names[0]}.", tag="figcaption")
    return markup(chart)


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


def place(at: int, entries: Sequence[Entry]) -> float:
    """Return where the night ``at`` stands on the axis, from 0 to 1."""
    return (at + 0.5) / len(entries)


def _add_mark(plot: ET.Element, trend: Trend, entry: Entry, *, left: str, axis: Axis) -> None:
    if entry.value is None:
        box(plot, "missed", left=left)
    svg = drawn(entry.status)
    svg.set("style", f"left:{left};bottom:{share(0 if entry.value is None else axis.share(entry.value), 1)}")
    ET.SubElement(svg, "title").text = gate_history_text.entry_text(trend, entry)
    plot.append(svg)


def _tell_step(plot: ET.Element, trend: Trend, entries: Sequence[Entry], axis: Axis) -> None:
    """Write beside the largest step how large it is, and the commit of its night."""
    step = trend.step
    if step is None or step.after not in entries:
        return
    where = place(entries.index(step.after), entries)
    side = "before" if where > 0.5 else "behind"
    way = "rise" if step.change > 0 else "fall"
    culprit = step.after.culprit.commit if step.after.culprit else ""
    commit = culprit or (step.after.standing.commit if step.after.standing else "")
    bottom = share(axis.share(step.after.value or 0), 1)
    size = gate_words.change_text(trend.metric, step.change)
    label = box(plot, f"step {side} {way}", size, left=share(where, 1), bottom=bottom)
    if commit:
        box(label, "minor", f" {short_hash(commit)}")


def _name_nights(chart: ET.Element, entries: Sequence[Entry]) -> None:
    """Write below the plot when some of the nights were, the first and the last among them."""
    days = box(chart, "days", tag="div")
    last = len(entries) - 1
    every = max(1, -(-last // (NAMED - 1)))
    named = [*(at for at in range(0, last, every) if at == 0 or 2 * (last - at) > every), last]
    texts = gate_history_text.day_texts([entries[at] for at in named])
    for at, text in zip(named, texts, strict=True):
        kind = "day first" if at == 0 else "day last" if at == last else "day minor"
        box(days, kind, text, left=share(place(at, entries), 1))
