"""The range of a search as a page draws it: the line of commits with what is known of each, and the probes that told.

The strip shows every commit that changes what is measured, to scale. Below it each probe has a row, in the order
asked: its mark stands where the commit does, and the band around it is the range in which the culprit was by then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple
from xml.etree import ElementTree as ET

from markupsafe import Markup

from oomscope.bisect.results.result import BisectResult, CommitCulprit, ProbeRecord
from oomscope.bisect.results.sections import WalkedLine
from oomscope.bisect.search.line import Answer
from oomscope.report import bisect_sentences
from oomscope.report.charts.html import box, figure, markup, share
from oomscope.report.search_status import Asked, Bracket, Standing, asked_on, bracket_of, standings
from oomscope.report.sentences import count

ROOM: Final = 640
"""Height of the rows of all probes in pixels, unless rows would be lower than ``LOWEST``."""
HIGHEST: Final = 19
LOWEST: Final = 5
NUMBERED: Final = 11
"""A row that is lower than this has a number only where it is one of a few."""
FEW: Final = 100
"""Commits that the strip draws one by one."""
NAME_LENGTH: Final = 160
"""Characters of a subject."""
SYMBOLS: Final = {Answer.GOOD: "✓", Answer.BAD: "✗", Answer.UNTESTABLE: "?"}


class LineView(NamedTuple):
    """A line as a page shows it."""

    line: WalkedLine
    asked: tuple[Asked, ...]
    bracket: Bracket
    standings: Sequence[Standing]
    culprit: int | None
    """The place of the commit at fault, if it is on this line."""


def view_of(line: WalkedLine, result: BisectResult) -> LineView:
    """Return what ``result`` knows of ``line``."""
    asked = tuple(asked_on(line, result.probes))
    culprit = line.position.get(result.culprit.commit) if isinstance(result.culprit, CommitCulprit) else None
    bracket = Bracket(culprit - 1, culprit) if culprit else bracket_of(asked)
    return LineView(line, asked, bracket, standings(line, asked, bracket), culprit)


def range_chart(view: LineView, name: str, *, title: str) -> Markup:
    """Return the strip and the rows of probes.

    Args:
        view: the line.
        name: id of the element with the data of ``range_data``.
        title: what it shows.
    """
    chart = figure("range", title)
    chart.set("data-range", name)
    last = len(view.line.places) - 1
    frame = box(chart, "frame", tag="div")
    strip = box(frame, "strip" if last >= FEW else "strip few", tag="div")
    for standing, first, end in _pieces(view.standings):
        box(strip, f"run {standing.value}", left=share(first, last + 1), width=share(end - first, last + 1))
    if view.culprit is not None:
        box(strip, "culprit", left=share(view.culprit, last + 1), width=share(1, last + 1))
    _probes(frame, view, last + 1)
    ends = box(chart, "ends", tag="div")
    for place, what in (
        ((0, "good end"), (last, "bad end")) if view.line.merge is None else ((0, "fork"), (last, "tip"))
    ):
        box(ends, "end", f"{what} {bisect_sentences.short_hash(view.line.places[place].commit)}")
    _legend(chart, view)
    return markup(chart)


def range_data(view: LineView, named: int) -> dict[str, Any]:
    """Return what a script tells of each place; only the ``named`` ones nearest to the answer have a name."""
    places = view.line.places
    probed = {each.place for each in view.asked}
    middle = view.culprit if view.culprit is not None else (view.bracket.good or 0)
    nearest = sorted(range(len(places)), key=lambda place: (place not in probed, abs(place - middle)))[:named]
    answers: dict[int, list[str]] = defaultdict(list)
    for each in view.asked:
        answers[each.place].append(answer_text(each.record))
    return {
        "count": len(places),
        "names": {place: name_of(view.line, place) for place in sorted(nearest)},
        "answers": answers,
        "standings": [[standing.value, end - first] for standing, first, end in _runs(view.standings)],
        "start": view.culprit if view.culprit is not None else (view.bracket.bad or 0),
        "culprit": view.culprit,
    }


def name_of(line: WalkedLine, place: int) -> str:
    """Return the hash and subject of a place, with how many more commits measure the same."""
    found = line.places[place]
    subject = bisect_sentences.shortened(found.subject, NAME_LENGTH)
    more = f" (and {count(found.commits - 1, 'commit')} after it that measure the same)" if found.commits > 1 else ""
    return f"{bisect_sentences.short_hash(found.commit)} {subject}{more}"


def answer_text(record: ProbeRecord) -> str:
    """Return the answer of one probe with its number."""
    reason = bisect_sentences.shortened(record.reason, NAME_LENGTH)
    return f"probe {record.number}: {record.answer.value}, {reason}{' (cached)' if record.cached else ''}"


def _runs(states: Sequence[Standing]) -> Iterator[tuple[Standing, int, int]]:
    """Yield each stretch of places with one standing: its first place, and the one after its last."""
    first = 0
    for standing, members in groupby(states):
        end = first + len(list(members))
        yield standing, first, end
        first = end


def _pieces(states: Sequence[Standing]) -> Iterator[tuple[Standing, int, int]]:
    """Yield what is drawn apart: each commit where they are few, else each stretch with one standing."""
    if len(states) > FEW:
        yield from _runs(states)
    else:
        yield from ((standing, place, place + 1) for place, standing in enumerate(states))


def _probes(frame: ET.Element, view: LineView, places: int) -> None:
    rows = len(view.asked)
    if not rows:
        return
    height = max(LOWEST, min(HIGHEST, ROOM // rows))
    every = 1 if height >= NUMBERED else -(-NUMBERED // height)
    plot = box(frame, "probes" if height >= NUMBERED else "probes low", tag="div", height=f"{rows * height}px")
    for index, (place, record, before) in enumerate(view.asked):
        top, tall = share(index, rows), share(1, rows)
        if before.good is not None and before.bad is not None and record.role != "step":
            left, wide = share(before.good, places), share(before.bad - before.good + 1, places)
            box(plot, "band", left=left, width=wide, top=top, height=tall)
        if index % every == 0:
            box(plot, "number", str(record.number), top=share(index + 0.5, rows))
        at = {"left": share(place + 0.5, places), "top": share(index + 0.5, rows)}
        mark = box(plot, f"mark {record.answer.value}", SYMBOLS[record.answer], **at)
        mark.set("title", f"{answer_text(record)}\n{name_of(view.line, place)}")


def _legend(chart: ET.Element, view: LineView) -> None:
    legend = box(chart, "legend", tag="div")
    names = {
        Standing.GOOD: "probed: good",
        Standing.BAD: "probed: bad",
        Standing.UNTESTABLE: "untestable",
        Standing.BEFORE: "not looked into, before a good commit",
        Standing.AFTER: "not looked into, after a bad commit",
        Standing.OPEN: "not looked into, not ruled out",
    }
    for standing, name in names.items():
        if number := sum(each is standing for each in view.standings):
            box(legend, f"key {standing.value}", f"{name} ({number:,})")
