"""One bisection along a line of commits: checks both ends, then asks the prober what the pure search wants to know.

With chosen paths only the commits that touch them are asked about at first. What that finds is proven by the commit's
parent; where the parent is bad as well, the search goes on among the commits in between, which touch none of the paths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from oomscope.bisect.lines.probed_line import OUTSIDE, ProbedLine
from oomscope.bisect.results.result import judge_ends
from oomscope.bisect.run.deadline import OutOfTimeError
from oomscope.bisect.search.line import Search, SearchFinding
from oomscope.bisect.search.speculation import ahead


@dataclass(frozen=True, kw_only=True)
class LineAnswer:
    """How a search along a line ended."""

    kind: Literal["found", "no_culprit", "ends_invalid", "out_of_time"]
    reason: str = ""
    found: SearchFinding | None = None
    """The positions between which the line turns from good to bad, once both ends are known."""


@dataclass
class LineSearch(ProbedLine):
    """A search along one line that believes what is answered."""

    _places: Sequence[int] = ()
    """The positions that the bisection under way is over."""
    _search: Search | None = None
    """That bisection, over places in ``_places``."""

    def run(self) -> LineAnswer:
        """Check the ends, search between them and return the answer."""
        try:
            if 0 not in self.records:
                self.foresee(0, self.track.last)
                self.probe(0, "good end")
            if self.track.last not in self.records:
                self.foresee(0, self.track.last)
                self.probe(self.track.last, "bad end")
            answered = judge_ends(self.records[0], self.records[self.track.last])
            if answered is not None:
                return LineAnswer(kind=answered.kind, reason=answered.reason)
            return LineAnswer(kind="found", found=self._between_ends())
        except OutOfTimeError:
            return self._stopped()

    def _between_ends(self) -> SearchFinding:
        """Search between the ends, the first of which is taken for good and the last for bad."""
        found = self._bisect(self.track.asked_first)
        if set(found.suspects) <= set(self.track.asked_first):
            return found
        return self._among_all(found)

    def _bisect(self, places: Sequence[int], first: int | None = None) -> SearchFinding:
        """Search among ``places``, of which the ends are known, and return what was found, in positions.

        Args:
            places: positions in order.
            first: the one to ask about before the search chooses.
        """
        self._places = places
        self._search = Search.over(len(places) - 1)
        for place in set(places) & self.records.keys():
            self._search = self._search.told(places.index(place), self.records[place].answer)
        if first is not None:
            self._ask(places.index(first))
        while (wanted := self._search.wanted) is not None:
            self._ask(wanted)
        return self._found(self._search)

    def _ask(self, wanted: int) -> None:
        if self._search is not None:
            places, search = self._places, self._search
            self.prober.foresee(lambda: map(self.experiment, self._ahead(places, search)))
            self._search = self._search.told(wanted, self.probe(self._places[wanted], "search").answer)

    def foresee(self, *ends: int) -> None:
        """Foresee ``ends``, and the bisection that follows unless they answer by themselves."""
        places = self.track.asked_first

        def positions() -> Iterator[int]:
            yield from ends
            if self.track.last > 0:
                yield from self._ahead(places, Search.over(len(places) - 1))

        self.prober.foresee(lambda: map(self.experiment, positions()))

    def _ahead(self, places: Sequence[int], search: Search) -> Iterator[int]:
        """Yield the positions that ``search`` over ``places`` is likely to ask about, likeliest first."""
        wanted = ahead(
            [search],
            lambda state: state.wanted,
            Search.told,
            lambda place: self.prober.foreseen(self.experiment(places[place])),
        )
        return (places[place] for place in wanted)

    def _among_all(self, found: SearchFinding) -> SearchFinding:
        """Search among all that lies between the last good and the first bad position that ``found`` left.

        The parent of the first bad one comes first, if that one is the only choice: where it is good, that is all.
        """
        span = range(found.last_good, found.first_bad + 1)
        choice = [position for position in found.suspects if position in self.track.chosen]
        found = self._bisect(span, first=span[-2] if choice == [found.first_bad] else None)
        if not set(found.suspects) & set(self.track.chosen):
            among = f"{self.commits_text} between {self.commit(span[0]).short} and {self.commit(span[-1]).short}"
            self.prober.note(f"the change {OUTSIDE}: the search went on among all {among}")
        return found

    def _found(self, search: Search) -> SearchFinding:
        """Return what ``search`` has found, in positions, with those between its places that it never asks about."""
        last_good, first_bad = self._places[search.found.last_good], self._places[search.found.first_bad]
        suspects = tuple(range(last_good + 1, first_bad + 1))
        return SearchFinding(
            kind="culprit" if len(suspects) == 1 else "suspects", last_good=last_good, suspects=suspects
        )

    def _stopped(self) -> LineAnswer:
        if self._search is None:
            return LineAnswer(kind="out_of_time", reason="the deadline passed before both ends were checked")
        return LineAnswer(kind="out_of_time", reason="the deadline passed", found=self._found(self._search))
