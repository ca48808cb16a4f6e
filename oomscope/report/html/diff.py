"""A difference as one offline page: both timelines over each other, and tables that can be searched and sorted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Final, Generic, NamedTuple, TypeVar

from markupsafe import Markup

from oomscope.report import diff_sentences
from oomscope.report.charts.curves import Series, curves
from oomscope.report.html.page import Script, fitting, render
from oomscope.report.sentences import count
from oomscope.report.text.diff import cut
from oomscope.snapshot.compare.changes import Change, LineChange, NamedChange
from oomscope.snapshot.compare.diff import DeviceDifference, Difference

SHOWN: Final = 500
"""Rows of a table; what is beyond is one row, so that the sum holds."""
FEWEST: Final = 5
"""Rows of any table that has as many, however little room there is."""
DEVICES: Final = 8
"""Devices, or ranks, that have a section of their own: those that grew most."""

Row = TypeVar("Row", bound=Change)


class Rows(NamedTuple, Generic[Row]):
    """The rows of a table."""

    shown: Sequence[Row]
    rest: NamedChange | None
    """What is not shown, added up."""


class DeviceView(NamedTuple):
    """What the page shows of a device beside its facts."""

    chart: Markup
    lines: Rows[LineChange]
    categories: Rows[NamedChange]
    modules: Rows[NamedChange]
    sizes: Rows[NamedChange]


def diff_page(difference: Difference) -> str:
    """Return the page of a difference."""
    return fitting(lambda share: _page(difference, max(FEWEST, int(share * SHOWN))))


def _page(difference: Difference, shown: int) -> str:
    devices = difference.devices[:DEVICES]
    return render(
        "diff.html.j2",
        Script.read("tables.js"),
        title=f"{PurePath(difference.before_file).name} against {PurePath(difference.after_file).name}",
        difference=difference,
        shown=shown,
        sections=[(device, _view(device, shown)) for device in devices],
        versions={},
        diff_sentences=diff_sentences,
    )


def _view(device: DeviceDifference, shown: int) -> DeviceView:
    return DeviceView(
        chart=_chart(device),
        lines=_rows(device.lines, shown, "further line"),
        categories=_rows(device.categories, shown, "further category", "further categories"),
        modules=_rows(device.modules, shown, "further module"),
        sizes=_rows(device.sizes, shown, "further size"),
    )


def _chart(device: DeviceDifference) -> Markup:
    timeline = device.timeline
    series = (
        Series(label="A", values=timeline.before, style="first"),
        Series(label="B", values=timeline.after, style="second"),
    )
    return curves(series, title="Requested bytes of A and B", stretches=timeline.stretches)


def _rows(rows: Sequence[Row], shown: int, *name: str) -> Rows[Row]:
    """Return the first rows, and the others as one that is called by how many of ``name`` there are."""
    top, rest = cut(rows, shown)
    if not rest:
        return Rows(top, None)
    total = NamedChange(
        name=count(len(rest), *name),
        before_bytes=sum(row.before_bytes for row in rest),
        after_bytes=sum(row.after_bytes for row in rest),
        before_count=sum(row.before_count for row in rest),
        after_count=sum(row.after_count for row in rest),
    )
    return Rows(top, total)
