"""A difference as one offline page: both timelines over each other, and tables that can be searched and sorted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Final, NamedTuple

from markupsafe import Markup

from oomscope.report import diff_words
from oomscope.report.curves import Series, curves
from oomscope.report.html import render
from oomscope.report.script import Script
from oomscope.report.words import count
from oomscope.snapshot.comparing.changes import LineChange, NamedChange
from oomscope.snapshot.comparing.diff import DeviceDifference, Difference

SHOWN: Final = 500
"""Lines of a device; what is beyond is one row, so that the sum holds."""


DEVICES: Final = 8
"""Devices, or ranks, that have a section of their own: those that grew most."""


class Lines(NamedTuple):
    """The rows of the table by line."""

    shown: Sequence[LineChange]
    rest: NamedChange | None
    """What is not shown, added up."""


def diff_page(difference: Difference) -> str:
    """Return the page of a difference."""
    devices = difference.devices[:DEVICES]
    return render(
        "diff.html.j2",
        Script.read("tables.js"),
        title=f"{PurePath(difference.before_file).name} against {PurePath(difference.after_file).name}",
        difference=difference,
        devices=devices,
        charts=[_chart(device) for device in devices],
        lines=[_lines(device.lines) for device in devices],
        versions={},
        diff_words=diff_words,
    )


def _chart(device: DeviceDifference) -> Markup:
    timeline = device.timeline
    series = (
        Series(label="A", values=timeline.before, style="first"),
        Series(label="B", values=timeline.after, style="second"),
    )
    return curves(series, title="Live requested bytes of A and B", stretches=timeline.stretches)


def _lines(rows: Sequence[LineChange]) -> Lines:
    shown, rest = rows[:SHOWN], rows[SHOWN:]
    if not rest:
        return Lines(shown, None)
    total = NamedChange(
        name=count(len(rest), "further line"),
        before_bytes=sum(row.before_bytes for row in rest),
        after_bytes=sum(row.after_bytes for row in rest),
        before_count=sum(row.before_count for row in rest),
        after_count=sum(row.after_count for row in rest),
    )
    return Lines(shown, total)
