"""The steps of a search as a waterfall: each row leads from where the last one ended, requested bytes beside overhead.

The axes begin at the lowest level and end at the highest: a step of 100 MiB would not be seen on one that begins at
zero and ends at a card's 80 GiB. Both ends of an axis are named. Where reserved bytes are not known there is one axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple
from xml.etree import ElementTree as ET

from markupsafe import Markup

from oomscope.bisect.results.result import StepRow
from oomscope.bisect.results.sections import levels
from oomscope.bisect.search.measured import Bytes
from oomscope.report import bisect_sentences
from oomscope.report.charts.html import box, figure, markup, share
from oomscope.report.text.bisect_tables import dominant_text
from oomscope.units import format_size

MARGIN: Final = 0.04
"""Share of an axis that lies before its lowest and after its highest level."""
NAME_LENGTH: Final = 110


class Axis(NamedTuple):
    """One of the two quantities, as levels from the good end to the bad end."""

    name: str
    levels: Sequence[int]

    @property
    def low(self) -> int:
        """The lowest level."""
        return min(self.levels)

    @property
    def span(self) -> int:
        """From the lowest level to the highest; never zero."""
        return max(1, max(self.levels) - self.low)

    def place(self, level: int) -> float:
        """Return where ``level`` lies, from 0 to 1."""
        return MARGIN + (1 - 2 * MARGIN) * (level - self.low) / self.span


def waterfall_chart(steps: Sequence[StepRow], start: Bytes, *, culprit: str | None, heaviest: str | None) -> Markup:
    """Return the waterfall of ``steps`` from ``start``.

    Args:
        steps: rows from good to bad.
        start: the bytes of the good end.
        culprit: hash of the commit at fault, whose row is marked.
        heaviest: hash of the commit that weighs most.
    """
    reached = [start, *levels(start, (step.delta for step in steps))]
    axes = [Axis("Requested", [each.requested_bytes for each in reached])]
    overheads = [each.overhead_bytes for each in reached if each.overhead_bytes is not None]
    if len(overheads) == len(reached):
        axes.append(Axis("Overhead", overheads))
    chart = figure("waterfall" if len(axes) > 1 else "waterfall live-alone", "Steps from good to bad")
    head = box(chart, "row head", tag="div")
    for text in ("Came with", *(axis.name for axis in axes)):
        box(head, "cell", text)
    if len(axes) > 1:
        box(head, "cell", "Reserved")
    _end(chart, axes, reached[0], 0, "good end")
    for index, step in enumerate(steps):
        row = box(chart, f"row{' culprit' if step.commit and step.commit == culprit else ''}", tag="div")
        _name(row, step, culprit=culprit, heaviest=heaviest)
        for axis in axes:
            _step(row, axis, index)
        _reserved(row, reached[index + 1])
    _end(chart, axes, reached[-1], len(steps), "bad end")
    _scales(chart, axes)
    return markup(chart)


def _name(row: ET.Element, step: StepRow, *, culprit: str | None, heaviest: str | None) -> None:
    cell = box(row, "cell name")
    label = bisect_sentences.shortened(step.label, NAME_LENGTH)
    box(cell, "label", bisect_sentences.step_text(replace(step, label=label)), tag="bdi")
    if step.commit is not None and step.commit == culprit:
        box(cell, "tag bad", "at fault")
    if step.commit is not None and step.commit == heaviest:
        box(cell, "tag", "heaviest")
    if mostly := dominant_text(step.dominant):
        box(cell, "mostly", f"mostly {mostly}")


def _step(row: ET.Element, axis: Axis, index: int) -> None:
    """Draw the step from level ``index`` to the next, and write its size."""
    before, after = axis.levels[index : index + 2]
    cell = box(row, f"cell {axis.name.lower()}")
    track = box(cell, "track")
    low, high = sorted((axis.place(before), axis.place(after)))
    tone = "bad" if after > before else "good" if after < before else "quiet"
    box(track, f"bar {tone}", left=share(low, 1), width=share(high - low, 1))
    box(cell, f"size {tone}", format_size(after - before, signed=True))


def _end(chart: ET.Element, axes: Sequence[Axis], reached: Bytes, index: int, name: str) -> None:
    row = box(chart, "row edge", tag="div")
    box(row, "cell name", name)
    for axis in axes:
        cell = box(row, f"cell {axis.name.lower()}")
        track = box(cell, "track")
        box(track, "level", left=share(axis.place(axis.levels[index]), 1))
        box(cell, "size", format_size(axis.levels[index]))
    _reserved(row, reached)


def _reserved(row: ET.Element, reached: Bytes) -> None:
    if reached.reserved_bytes is not None:
        box(row, "cell reserved", format_size(reached.reserved_bytes))


def _scales(chart: ET.Element, axes: Sequence[Axis]) -> None:
    """Name both ends of each axis, below it."""
    row = box(chart, "row scales", tag="div")
    box(row, "cell name", "from … to")
    for axis in axes:
        cell = box(row, f"cell {axis.name.lower()}")
        box(cell, "scale", f"{format_size(axis.low)} … {format_size(axis.low + axis.span)}")
    if len(axes) > 1:
        box(row, "cell reserved", "")
