"""The search for the culprit on one line: by bisection, or where answers may be wrong by their posterior.

With chosen paths only the commits that touch them are asked about at first. What that finds is confirmed by the
commit's parent; where the parent is bad as well, the search continues among the commits in between.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from oomscope.bisect.lines.line import OUTSIDE, Line
from oomscope.bisect.results.noise import Noise, Posterior, heeded, percent
from oomscope.bisect.results.result import judge_ends
from oomscope.bisect.run.experiment import Experiment
from oomscope.bisect.run.prober import Ahead
from oomscope.bisect.run.workplace import OutOfTimeError
from oomscope.bisect.search.line import Answer, Search, SearchFinding
from oomscope.bisect.search.measured import Untestable
from oomscope.bisect.search.posterior import PosteriorSearch
from oomscope.bisect.search.speculation import ahead

CHOSEN = 0.5
"""Prior probability of the chosen paths, where there are others."""
_TOO_EARLY = "the deadline passed before both ends were checked"


@dataclass(frozen=True, kw_only=True)
class LineAnswer:
    """How a search along a line ended."""

    kind: Literal["found", "no_culprit", "ends_invalid", "out_of_time"]
    reason: str = ""
    found: SearchFinding | None = None
    """The positions between which the line turns from good to bad, once both ends are known."""


@dataclass
class LineSearcher:
    """Searches lines, believing or weighing the answers.

    Args:
        asked_for: how to treat noise; None leaves it to the backend.
    """

    asked_for: Noise | None
    _is_known_on_card: bool = False

    def run(self, line: Line) -> LineAnswer:
        """Search ``line``, and return the answer."""
        noise = self.noise_of(line)
        if line.merge is not None and line.is_unchanged:
            return LineAnswer(kind="no_culprit", reason="nothing on it changes what is measured")
        return PlainSearch(line).run() if noise is None or line.is_unchanged else NoisySearch(line, noise).run()

    def noise_of(self, line: Line) -> Noise | None:
        """Return how noise is treated; None for a plain search. The good end may be probed to know the backend."""
        if self.asked_for is None and not self._is_known_on_card:
            self._is_known_on_card = self._is_on_card(line)
        return heeded(self.asked_for, is_on_card=self._is_known_on_card)

    def _is_on_card(self, line: Line) -> bool:
        first = line.experiment(0)
        if isinstance(first, Untestable) or first.job.backend == "virtual":
            return False
        if not line.results:
            try:
                line.probe(0, "good end", PlainSearch(line).ends_ahead)
            except OutOfTimeError:
                return False
        return any(result.backend == "cuda" for result in line.results.values())


@dataclass
class PlainSearch:
    """A search along one line that believes every answer."""

    line: Line
    _places: Sequence[int] = ()
    """The positions that the current bisection is over."""
    _search: Search | None = None
    """That bisection, over places in ``_places``."""

    def run(self) -> LineAnswer:
        """Check the ends, search between them and return the answer."""
        line = self.line
        try:
            if (answered := self._ends() if line.merge is None else self._ends_of_branch()) is not None:
                return answered
            found = self._between_ends()
        except OutOfTimeError:
            if self._search is None:
                reason = _TOO_EARLY if line.merge is None else "the deadline passed"
                return LineAnswer(kind="out_of_time", reason=reason)
            found = self._found(self._search)
            is_bounded = line.merge is None or line.is_bounded(found)
            return LineAnswer(kind="out_of_time", reason="the deadline passed", found=found if is_bounded else None)
        if line.merge is not None and not line.is_bounded(found):
            return LineAnswer(kind="ends_invalid", reason=f"its beginning cannot be tested: {line.records[0].reason}")
        return LineAnswer(kind="found", found=found)

    def _ends(self) -> LineAnswer | None:
        """Check both ends, and return the answer that they give by themselves."""
        line = self.line
        if 0 not in line.records:
            line.probe(0, "good end", self.ends_ahead)
        if line.last not in line.records:
            line.probe(line.last, "bad end", self.ends_ahead)
        answered = judge_ends(line.records[0], line.records[line.last])
        return None if answered is None else LineAnswer(kind=answered.kind, reason=answered.reason)

    def _ends_of_branch(self) -> LineAnswer | None:
        """Check tip and beginning of a branch, and return the answer that they give by themselves.

        A good tip is ``no_culprit``, a bad beginning ``ends_invalid``. An untestable beginning is one more untestable
        position: a good commit after it will do.
        """
        line = self.line
        tip = line.records.get(line.tip) or line.probe(line.tip, "bad end", self.ends_ahead)
        if tip.answer is Answer.GOOD:
            with contextlib.suppress(OutOfTimeError):
                line.probe(0, "good end", self.ends_ahead)  # only the steps need the beginning
            return LineAnswer(kind="no_culprit", reason=f"its tip is good: {tip.reason}")
        beginning = line.probe(0, "good end", self.ends_ahead)
        if beginning.answer is Answer.BAD:
            return LineAnswer(kind="ends_invalid", reason=f"its beginning is bad already: {beginning.reason}")
        return None

    def _between_ends(self) -> SearchFinding:
        """Search between the ends; where the chosen paths do not explain the change, among all commits."""
        line = self.line
        found = self._bisect(line.asked_first)
        if set(found.suspects) <= set(line.asked_first):
            return found
        span = range(found.last_good, found.first_bad + 1)
        choice = [position for position in found.suspects if position in line.chosen]
        found = self._bisect(span, first=span[-2] if choice == [found.first_bad] else None)
        if not set(found.suspects) & set(line.chosen):
            commits = "commits" if line.merge is None else f"commits of the branch merged by {line.merge.short}"
            among = f"{commits} between {line.commit(span[0]).short} and {line.commit(span[-1]).short}"
            line.prober.note(f"the change {OUTSIDE}: the search went on among all {among}")
        return found

    def _bisect(self, places: Sequence[int], first: int | None = None) -> SearchFinding:
        """Search among ``places``, of which the ends are known, and return what was found, in positions.

        Args:
            places: positions in order.
            first: the one to ask about before the search chooses.
        """
        self._places = places
        self._search = Search.over(len(places) - 1)
        for place in set(places) & self.line.records.keys():
            self._search = self._search.told(places.index(place), self.line.records[place].answer)
        wanted = self._search.wanted if first is None else places.index(first)
        while wanted is not None:
            record = self.line.probe(places[wanted], "search", self._ahead_of(places, self._search))
            self._search = self._search.told(wanted, record.answer)
            wanted = self._search.wanted
        return self._found(self._search)

    def ends_ahead(self) -> Iterator[Experiment | Untestable]:
        """Yield both ends, and the bisection that follows unless they answer by themselves."""
        line = self.line
        yield from map(line.experiment, line.checked)
        if line.last > 0:
            yield from self._ahead_of(line.asked_first, Search.over(len(line.asked_first) - 1))()

    def _ahead_of(self, places: Sequence[int], search: Search) -> Ahead:
        """Return what yields the experiments that ``search`` over ``places`` is likely to ask for."""

        def experiment(place: int) -> Experiment | Untestable:
            return self.line.experiment(places[place])

        def likely() -> Iterator[Experiment | Untestable]:
            wanted = ahead(
                [search],
                lambda state: state.wanted,
                Search.told,
                lambda place: self.line.prober.foreseen(experiment(place)),
            )
            return map(experiment, wanted)

        return likely

    def _found(self, search: Search) -> SearchFinding:
        """Return the finding of ``search`` in positions, with those between its places that it never asks about."""
        last_good, first_bad = self._places[search.found.last_good], self._places[search.found.first_bad]
        return SearchFinding.between(last_good, first_bad)


class NoisySearch:
    """A search along one line that weighs its answers.

    The ends are candidates like all others (the good end may be bad already, the bad end good), and chosen paths are a
    prior: half of the probability is theirs.

    Args:
        line: where, and the answers along it.
        noise: how sure to be.
    """

    def __init__(self, line: Line, noise: Noise) -> None:
        self.line = line
        self._state = PosteriorSearch(
            last=line.last, enough=noise.confidence, repeats=noise.repeats, prior=prior_of(line.last, line.chosen)
        )
        for position, given in line.given.items():
            for record, _ in given:
                self._state = self._state.told(position, record.answer)

    def run(self) -> LineAnswer:
        """Probe the ends, then the most informative position, until one answer is sure enough; and return it."""
        line = self.line
        try:
            for position in line.checked:
                if position not in line.given:
                    self._ask(position, "good end" if position == 0 else "bad end")
            answer = self._untestable_end()
            while answer is None and (wanted := self._state.wanted) is not None:
                self._ask(wanted, "search")
        except OutOfTimeError:
            answer = self._stopped()
        answer = self._bounded(answer or self._answer())
        if answer.found is not None:
            line.settle(answer.found)
        line.posterior = self._state
        return answer

    def _untestable_end(self) -> LineAnswer | None:
        """Return the answer that an untestable end gives; a branch can do without its ends."""
        silent = [end for end in sorted(self.line.checked) if self._state.is_silent(end)]
        if not silent or self.line.merge is not None:
            return None
        return LineAnswer(kind="ends_invalid", reason=self._cannot_be_tested(silent[0]))

    def _cannot_be_tested(self, end: int) -> str:
        return f"{self.line.end_names[end > 0]} cannot be tested: {self.line.records[end].reason}"

    def _ask(self, position: int, role: Literal["good end", "bad end", "search"]) -> None:
        state = self._state
        record = self.line.probe(position, role, lambda: self._ahead(state), anew=True)
        self._state = state.told(position, record.answer)

    def _ahead(self, state: PosteriorSearch) -> Iterator[Experiment | Untestable]:
        """Yield what is likely to be measured next: the ends that are not known, then what the posterior wants."""
        for end in self.line.checked:
            if end not in self.line.given:
                yield self.line.again(end)
                state = state.told(end, Answer.GOOD if end == 0 else Answer.BAD)

        def experiment(question: tuple[int, int]) -> Experiment | Untestable:
            position, times = question
            return self.line.again(position, later=times - self._state.times(position))

        yield from map(experiment, questions_ahead(state, lambda each: self.line.prober.foreseen(experiment(each))))

    def _answer(self) -> LineAnswer:
        state, line = self._state, self.line
        good_name, bad_name = line.end_names
        if not state.is_sure:
            return LineAnswer(kind="found", reason=self._unsure(), found=state.found)
        first, end = state.leading
        if first == 0:
            reason = f"{good_name} is bad already, {sure(state)}" if end == 0 else self._cannot_be_tested(0)
            return LineAnswer(kind="ends_invalid", reason=reason)
        if end > state.last:
            if first != end:
                return LineAnswer(kind="ends_invalid", reason=self._cannot_be_tested(state.last))
            # A merge that turns out good acquits nothing.
            kind: Literal["no_culprit", "ends_invalid"] = "no_culprit" if line.merge is None else "ends_invalid"
            return LineAnswer(kind=kind, reason=f"{bad_name} is good, {sure(state)}")
        if first == end == state.last and line.is_end_of_branch(end):
            return LineAnswer(kind="no_culprit", reason=f"its tip is good, {sure(state)}")
        found = state.found
        if not set(found.suspects) & set(line.chosen):
            line.prober.note(f"the change {OUTSIDE}, {sure(state)}")
        return LineAnswer(kind="found", found=found)

    def _bounded(self, answer: LineAnswer) -> LineAnswer:
        """Return ``answer``; without what it found where no commit that answered good lies before that."""
        if answer.found is None or self.line.is_bounded(answer.found):
            return answer
        why = f"no commit from {self.line.end_names[0]} on has answered good"
        if self._state.is_silent(0):
            why = self._cannot_be_tested(0)
        reason = f"{answer.reason}; {why}" if answer.reason else why
        return LineAnswer(kind="out_of_time" if answer.kind == "out_of_time" else "ends_invalid", reason=reason)

    def _unsure(self) -> str:
        state = self._state
        outside = f"; that there is no culprit has {percent(state.none)}" if state.none >= 1 - state.enough else ""
        return (
            f"answers contradict each other, and none is {percent(state.enough)} sure after up to {state.repeats} "
            f"probes of a commit{outside}"
        )

    def _stopped(self) -> LineAnswer:
        if not all(end in self.line.given for end in self.line.checked):
            return LineAnswer(kind="out_of_time", reason=_TOO_EARLY)
        reason = f"the deadline passed before one answer was {percent(self._state.enough)} sure"
        return LineAnswer(kind="out_of_time", reason=reason, found=self._state.found)


def questions_ahead(
    state: PosteriorSearch, known: Callable[[tuple[int, int]], Answer | None]
) -> Iterator[tuple[int, int]]:
    """Yield what ``state`` is likely to ask, likeliest first: positions, each with how often it was asked before.

    Args:
        state: of the search; its own question comes first.
        known: the answer to a question, as far as it is known.
    """
    return ahead(
        [state],
        lambda state: None if state.wanted is None else (state.wanted, state.times(state.wanted)),
        lambda state, question, answer: state.told(question[0], answer),
        known,
        lambda state, question: state.predicted(question[0]),
    )


def prior_of(last: int, chosen: tuple[int, ...]) -> tuple[float, ...]:
    """Return the weights of candidates 1 to ``last``: those on chosen paths have ``CHOSEN``, the others the rest."""
    among = set(chosen)
    hidden = last - len(among)
    if not among or not hidden:
        return ()
    weights = {True: CHOSEN / len(among), False: (1 - CHOSEN) / hidden}
    return tuple(weights[position in among] for position in range(1, last + 1))


def posterior_of(line: Line) -> Posterior | None:
    """Return the probabilities at the end of a search for a report; None where it did not weigh answers."""
    state = line.posterior
    if state is None:
        return None
    probabilities = state.probabilities.tolist()
    return Posterior(
        rows=tuple((line.commit(place).hash, probabilities[place]) for place in range(1, state.last + 1)),
        none=state.none,
        already=state.already,
        confidence=state.confidence,
        wanted=state.enough,
    )


def sure(state: PosteriorSearch) -> str:
    """Return how sure the leading answer is, in words."""
    return f"{percent(state.confidence)} sure"
