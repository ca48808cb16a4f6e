"""An explained snapshot as one offline page: timeline, map of segments, and tables that can be searched and sorted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Final, NamedTuple

from markupsafe import Markup

from oomscope.report import explain_sentences, sentences
from oomscope.report.charts.html import embedded
from oomscope.report.charts.segments import TINY, WIDTH, segment_chart, segment_data, strip_of
from oomscope.report.charts.timeline import failed_event_of, timeline_chart, timeline_data
from oomscope.report.html.page import Script, fitting, render
from oomscope.report.rows import Line, lines
from oomscope.snapshot.explain.curves import Bins
from oomscope.snapshot.explain.drawing import Drawing, FloorPlan
from oomscope.snapshot.explain.explanation import DeviceExplanation, Explanation
from oomscope.snapshot.explain.rank_set import RankSet

SITES_SHOWN: Final = 300
"""Lines of code, all devices together; what is beyond is one row of its device, so that the sum holds."""
SHOWN: Final = 20
"""Rows of the other tables."""
RANKS_SHOWN: Final = 256
FEWEST: Final = 5
"""Rows of any table that has as many, however little room there is."""
TIMELINE_ROOM: Final = 600 * 1024
"""Bytes of a page that the data of its timelines may take, all devices together."""
SEGMENTS_ROOM: Final = 240 * 1024
"""The same of its maps of segments."""


class DeviceView(NamedTuple):
    """What the page shows of a device beside its explanation."""

    timeline: Markup | None
    segments: Markup | None
    data: dict[str, Markup]
    """JSON by element id."""
    sites: Sequence[Line]


def explain_page(found: Explanation | RankSet, drawings: Sequence[Drawing]) -> str:
    """Return the page of a snapshot, or of a folder's ranks and the worst of them.

    Args:
        found: what was found.
        drawings: the pictures, one for each device of the explanation that is shown.
    """
    return fitting(lambda share: _page(found, drawings, share))


def _page(found: Explanation | RankSet, drawings: Sequence[Drawing], share: float) -> str:
    """Return the page with a ``share`` of its detail, which the devices have in common."""
    explanation = found.worst if isinstance(found, RankSet) else found
    own = share / max(1, len(drawings))
    shown = max(FEWEST, int(share * SHOWN))
    views = [
        _view(device, drawing, number, own)
        for number, (device, drawing) in enumerate(zip(explanation.devices, drawings, strict=True), start=1)
    ]
    return render(
        "explain.html.j2",
        Script.read("tables.js", "charts.js", "timeline.js", "segments.js"),
        title=PurePath(found.directory if isinstance(found, RankSet) else found.file).name,
        explanation=explanation,
        ranks=found if isinstance(found, RankSet) else None,
        views=views,
        shown=shown,
        ranks_shown=max(FEWEST, int(share * RANKS_SHOWN)),
        versions={},
        explain_sentences=explain_sentences,
        sentences=sentences,
    )


def _view(device: DeviceExplanation, drawing: Drawing, number: int, share: float) -> DeviceView:
    """Return the pictures of a device under element ids that end in ``number``, with a ``share`` of all detail."""
    data: dict[str, Markup] = {}
    timeline = segments = None
    table = f"sites-{number}"
    if len(drawing.bins) > 1:
        timeline = timeline_chart(device, drawing.bins, f"timeline-{number}", table=table)
        data[f"timeline-{number}"] = _fitting(drawing.bins, failed_event_of(device), int(share * TIMELINE_ROOM))
    if drawing.plan and drawing.plan.segments:
        name = f"segments-{number}"
        segments, data[name] = _map(drawing.plan, name, table, device, int(share * SEGMENTS_ROOM))
    parts = device.failure or device.composition
    return DeviceView(timeline, segments, data, lines(parts.sites, max(FEWEST, int(share * SITES_SHOWN))))


def _fitting(bins: Bins, failed_event: int | None, room: int) -> Markup:
    """Return a timeline's data, in bins as fine as the room allows."""
    while True:
        text = embedded(timeline_data(bins, failed_event=failed_event))
        if len(text) <= room or len(bins) < 2:
            return text
        bins = bins.coarser(max(2, _power_of_two(len(text) // room)))  # half as many bins take half the bytes or more


def _power_of_two(number: int) -> int:
    """Return the largest power of two up to ``number``."""
    return 1 << max(0, number.bit_length() - 1)


def _map(plan: FloorPlan, name: str, table: str, device: DeviceExplanation, room: int) -> tuple[Markup, Markup]:
    """Return the map of segments and its data, with tiles as small as the room allows."""
    tiny = TINY
    while True:
        strip = strip_of(plan, tiny)
        chart = segment_chart(strip, name, table=table, when=explain_sentences.when_text(device))
        text = embedded(segment_data(strip))
        if len(chart) + len(text) <= room or tiny > WIDTH:
            return chart, text
        tiny *= 2
