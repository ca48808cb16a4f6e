"""The range of a search: the line of commits with what is known of each, and the probes in the order asked.

The strip shows every commit that changes what is measured, to scale. Below it each probe has a row: its mark stands
where the commit does, and the band around it is the range in which the culprit was by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final
from xml.etree import ElementTree as ET

from markupsafe import Markup

from oomscope.bisect.search.line import Answer
from oomscope.report.charts.html import add_legend, box, figure, markup, share
from oomscope.report.charts.plot import Key
from oomscope.report.commands.bisect import PLACE_STATE_TEXTS, LineView, answer_text, place_name
from oomscope.report.commands.search_status import PlaceState
from oomscope.report.sentences import short_hash

ROOM: Final = 640
"""Height of the rows of all probes in pixels, unless rows would be lower than ``LOWEST``."""
HIGHEST: Final = 19
LOWEST: Final = 5
NUMBERED: Final = 11
"""Height in pixels below which a row has a number only if it is one of a few."""
FEW: Final = 100
"""Commits that the strip draws one by one."""
SYMBOLS: Final = {Answer.GOOD: "✓", Answer.BAD: "✗", Answer.UNTESTABLE: "?"}


def range_chart(view: LineView) -> Markup:
    """Return the strip and the rows of probes; a commit and a probe say what they are where they are pointed at."""
    chart = figure("range", "Commits from good to bad")
    places = len(view.line.places)
    frame = box(chart, "frame", tag="div")
    strip = box(frame, "strip", tag="div")
    for state, first, end in _pieces(view.place_states):
        run = box(strip, f"run {state.value}", left=share(first, places), width=share(end - first, places))
        run.set("title", place_name(view.line, first) if end == first + 1 else PLACE_STATE_TEXTS[state])
    if view.culprit is not None:
        run = box(strip, "run culprit", left=share(view.culprit, places), width=share(1, places))
        run.set("title", place_name(view.line, view.culprit))
    if view.asked:
        _probes(frame, view, places)
    ends = box(frame, "ends", tag="div")
    names = ("good end", "bad end") if view.line.merge is None else ("fork", "tip")
    for name, place in zip(names, (view.line.places[0], view.line.places[-1]), strict=True):
        box(ends, "end", f"{name} {short_hash(place.commit)}")
    counts = {state: view.place_states.count(state) for state in PLACE_STATE_TEXTS}
    keys = [
        Key(text=f"{PLACE_STATE_TEXTS[each]} ({number:,})", style=each.value)
        for each, number in counts.items()
        if number
    ]
    add_legend(chart, keys)
    return markup(chart)


def _pieces(states: Sequence[PlaceState]) -> Iterator[tuple[PlaceState, int, int]]:
    """Yield what is drawn apart, with its first place and the one after its last.

    That is each commit where they are few, else each stretch with one state.
    """
    first = 0
    for state, members in groupby(states):
        end = first + len(list(members))
        if len(states) <= FEW:
            yield from ((state, place, place + 1) for place in range(first, end))
        else:
            yield state, first, end
        first = end


def _probes(frame: ET.Element, view: LineView, places: int) -> None:
    rows = len(view.asked)
    height = max(LOWEST, min(HIGHEST, ROOM // rows))
    every = -(-NUMBERED // height)
    plot = box(frame, "probes" if height >= NUMBERED else "probes low", tag="div", height=f"{rows * height}px")
    for index, (place, record, before) in enumerate(view.asked):
        if before.good is not None and before.bad is not None and record.role != "step":
            left, wide = share(before.good, places), share(before.bad - before.good + 1, places)
            box(plot, "band", left=left, width=wide, top=share(index, rows), height=share(1, rows))
        if index % every == 0:
            box(plot, "number-of", str(record.number), top=share(index + 0.5, rows))
        at = {"left": share(place + 0.5, places), "top": share(index + 0.5, rows)}
        mark = box(plot, f"mark {record.answer.value}", SYMBOLS[record.answer], **at)
        mark.set("title", f"{answer_text(record)}\n{place_name(view.line, place)}")
