"""What is known of each place on a line of commits while a search goes on: for the strips of page and terminal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from statistics import median
from typing import Final, NamedTuple

from oomscope.bisect.results.reporter import SearchPlan
from oomscope.bisect.results.result import ProbeRecord
from oomscope.bisect.results.sections import WalkedLine
from oomscope.bisect.search.line import Answer, Search


class PlaceState(Enum):
    """What is known of one place; the value is its CSS class."""

    GOOD = "good"
    BAD = "bad"
    UNTESTABLE = "untestable"
    BEFORE = "before"
    """Not tested, since it lies before the last good commit."""
    AFTER = "after"
    """Not tested, since it lies after the first bad commit."""
    OPEN = "open"
    """Not tested, and perhaps at fault."""


_ANSWERED = {Answer.GOOD: PlaceState.GOOD, Answer.BAD: PlaceState.BAD, Answer.UNTESTABLE: PlaceState.UNTESTABLE}
_BESIDE = frozenset({"step"})
"""Roles of probes that look for bytes: their answers move no end of the culprit's range."""


class Bracket(NamedTuple):
    """Between which places the line turns from good to bad; None while an end is not known."""

    good: int | None = None
    bad: int | None = None

    def with_answer(self, place: int, answer: Answer) -> Bracket:
        """Return the bracket that also knows the answer at ``place``; outside of it an answer changes nothing."""
        if (self.good is not None and place <= self.good) or (self.bad is not None and place >= self.bad):
            return self
        if answer is Answer.GOOD:
            return self._replace(good=place)
        return self._replace(bad=place) if answer is Answer.BAD else self


class Asked(NamedTuple):
    """One probe of a line."""

    place: int
    record: ProbeRecord
    before: Bracket
    """The range that was known when the probe was asked for."""


def asked_on(line: WalkedLine, records: Iterable[ProbeRecord]) -> Iterator[Asked]:
    """Yield the probes of ``line`` in the order asked."""
    bracket = Bracket()
    for record in records:
        place = line.position.get(record.commit)
        if place is None:
            continue
        yield Asked(place, record, bracket)
        if record.role not in _BESIDE:
            bracket = bracket.with_answer(place, record.answer)


def bracket_of(asked: Sequence[Asked]) -> Bracket:
    """Return what is known after ``asked``."""
    if not asked:
        return Bracket()
    place, record, before = asked[-1]
    return before if record.role in _BESIDE else before.with_answer(place, record.answer)


def place_states(line: WalkedLine, asked: Iterable[Asked], bracket: Bracket) -> list[PlaceState]:
    """Return what is known of each place; of one that was asked several times the answer given most often."""
    answers: dict[int, list[Answer]] = defaultdict(list)
    for each in asked:
        answers[each.place].append(each.record.answer)
    return [
        _ANSWERED[max(answers[place], key=answers[place].count)] if place in answers else _unasked(place, bracket)
        for place in range(len(line.places))
    ]


def _unasked(place: int, bracket: Bracket) -> PlaceState:
    if bracket.good is not None and place < bracket.good:
        return PlaceState.BEFORE
    if bracket.bad is not None and place > bracket.bad:
        return PlaceState.AFTER
    return PlaceState.OPEN


RECENT: Final = 8
"""Recent answers from which the next one's time is estimated: the first probe also starts the parent of the others."""


def probes_left(plan: SearchPlan, since: Sequence[ProbeRecord], asked: Sequence[Asked], bracket: Bracket) -> int | None:
    """Return how many answers the search for the culprit needs at most, untestable ones apart.

    ``since`` are the probes since the last plan, ``asked`` all on the plan's line. None where more is done than was
    announced: what that takes is not known.
    """
    line = plan.line
    if line is not None and bracket.good is not None and bracket.bad is not None:
        known = {each.place for each in asked}
        between = range(bracket.good + 1, bracket.bad)
        if all(place.is_chosen for place in line.places[1:]):
            return Search.over(1 + sum(place not in known for place in between)).probes_left or None
    left = plan.probes_at_most - sum(record.answer is not Answer.UNTESTABLE for record in since)
    return left if left > 0 else None


def seconds_left(probes: int | None, records: Sequence[ProbeRecord], running_s: float) -> float | None:
    """Return the seconds for ``probes`` answers, by the median of the recent ones; None before there is one.

    The current probe has run for ``running_s``; what was known from before took no time and tells nothing.
    """
    took = [record.wall_s for record in records if not record.cached and record.outcome is not None][-RECENT:]
    if probes is None or not took:
        return None
    each = median(took)
    return max(0.0, (probes - 1) * each) + max(0.0, each - running_s)
