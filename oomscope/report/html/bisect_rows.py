"""The rows of a search's page: lines and categories with a bar each, hunks, commits around the answer, the cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from oomscope.bisect.results.growth import SiteGrowth
from oomscope.bisect.results.result import BisectResult
from oomscope.bisect.results.sections import Narrowed
from oomscope.bisect.search.measured import Bytes
from oomscope.report import bisect_sentences, sentences
from oomscope.report.charts.html import share
from oomscope.report.charts.range import LineView, answer_text
from oomscope.report.search_status import Standing
from oomscope.report.sentences import count

AROUND: Final = 6
"""Places on either side of the answer that are listed one by one."""
STANDING_TEXTS: Final = {
    Standing.BEFORE: "not looked into, before a good commit",
    Standing.AFTER: "not looked into, after a bad commit",
    Standing.OPEN: "not looked into, not ruled out",
}


class DeltaRow(NamedTuple):
    """Requested bytes of something before and after, with the bar of their difference."""

    name: str
    category: str
    before: int
    after: int
    left: str
    """Where the bar begins, as CSS has it."""
    width: str
    title: str = ""
    """The whole name of a line."""

    @property
    def delta(self) -> int:
        """Growth."""
        return self.after - self.before


def line_rows(rows: Iterable[SiteGrowth], shown: int) -> list[DeltaRow]:
    """Return the lines whose requested bytes differ, largest change first; those beyond ``shown`` as one row."""
    ordered = sorted(rows, key=lambda row: -abs(row.delta_bytes))
    cut = shown if len(ordered) > shown + 1 else len(ordered)
    named = [
        (
            bisect_sentences.growth_text(row),
            row.category.replace("_", " ") if row.site else "",
            row,
            str(row.site or ""),
        )
        for row in ordered[:cut]
    ]
    found = [(name, category, row.before_bytes, row.after_bytes, title) for name, category, row, title in named]
    if rest := ordered[cut:]:
        sums = (sum(row.before_bytes for row in rest), sum(row.after_bytes for row in rest))
        found.append((count(len(rest), "further line"), "", *sums, ""))
    return _with_bars(found)


def category_rows(rows: Iterable[SiteGrowth]) -> list[DeltaRow]:
    """Return the categories of the lines whose requested bytes differ, largest change first."""
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        sums[row.category][0] += row.before_bytes
        sums[row.category][1] += row.after_bytes
    ordered = sorted(sums.items(), key=lambda item: -abs(item[1][1] - item[1][0]))
    return _with_bars([(name.replace("_", " "), "", before, after, "") for name, (before, after) in ordered])


def _with_bars(rows: Sequence[tuple[str, str, int, int, str]]) -> list[DeltaRow]:
    """Return ``rows`` with bars to the right of zero for growth and to its left for the opposite, on one scale."""
    deltas = [after - before for _, _, before, after, _ in rows]
    low, high = min([0, *deltas]), max([0, *deltas])
    span = max(1, high - low)
    return [
        DeltaRow(name, category, before, after, share(min(0, delta) - low, span), share(abs(delta), span), title)
        for (name, category, before, after, title), delta in zip(rows, deltas, strict=True)
    ]


class SumRow(NamedTuple):
    """Bytes of hunks that are not one hunk's."""

    name: str
    delta: Bytes


def hunk_sums(narrowed: Narrowed) -> list[SumRow]:
    """Return what only all guilty hunks bring, what the others do, and the whole commit's."""
    rows = []
    if len(narrowed.guilty) > 1:
        is_known = all(hunk.delta is not None for hunk in narrowed.guilty)
        rows.append(SumRow("only together" if is_known else "together, or not measured", narrowed.interaction))
    if narrowed.candidates > len(narrowed.guilty):
        rows.append(SumRow("all other hunks", narrowed.rest))
    return [*rows, SumRow("the commit", narrowed.delta + narrowed.rest)]


class PlaceRow(NamedTuple):
    """A place near the answer."""

    place: int
    commit: str
    subject: str
    standing: Standing
    text: str
    is_culprit: bool


def places_around(view: LineView) -> list[PlaceRow]:
    """Return the places around the range in which the culprit is, and those probed there."""
    last = len(view.line.places) - 1
    good = view.bracket.good if view.bracket.good is not None else 0
    bad = view.bracket.bad if view.bracket.bad is not None else last
    answers: dict[int, list[str]] = defaultdict(list)
    for each in view.asked:
        answers[each.place].append(answer_text(each.record))
    rows = []
    for place in range(max(0, good - AROUND), min(last, bad + AROUND, good + 4 * AROUND) + 1):
        found, standing = view.line.places[place], view.standings[place]
        text = "; ".join(answers[place]) or STANDING_TEXTS[standing]
        subject = bisect_sentences.shortened(found.subject, 160)
        commit = bisect_sentences.short_hash(found.commit)
        rows.append(PlaceRow(place, commit, subject, standing, text, place == view.culprit))
    return rows


def cost_facts(result: BisectResult) -> list[tuple[str, str]]:
    """Return what the search took, as names and values."""
    cached = sum(probe.cached for probe in result.probes)
    asked = count(len(result.probes), "probe")
    facts = [("Asked", f"{asked}, {cached} of them known from before" if cached else asked)]
    if result.untestable:
        facts.append(("Untestable", count(len(result.untestable), "probe")))
    if result.cost is not None:
        facts.append(("Begun", count(result.cost.begun, "run")))
        facts.append(("Side by side", count(result.cost.slots, "slot")))
        facts.append(("Time", sentences.duration_text(result.cost.wall_s)))
    longest = max((probe.wall_s for probe in result.probes), default=0.0)
    return [*facts, ("Longest wait for an answer", sentences.duration_text(longest))]
