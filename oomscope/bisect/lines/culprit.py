"""The search for the culprit on one line.

With chosen paths only the commits that touch them are asked about at first. What that finds is confirmed by the
commit's parent; where the parent is bad as well, the search continues among the commits in between. Where answers may
be wrong, those that decide are repeated (:class:`~oomscope.bisect.search.repeats.RepeatedSearch`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from oomscope.bisect.lines.line import OUTSIDE, Line
from oomscope.bisect.results.result import OUT_OF_TIME, ProbeRecord, Role
from oomscope.bisect.run.experiment import Experiment, OutOfTimeError
from oomscope.bisect.run.prober import Ahead
from oomscope.bisect.search.line import Answer, SearchFinding, ahead
from oomscope.bisect.search.measured import Untestable
from oomscope.bisect.search.repeats import CONFIDENCE, Noise, RepeatedSearch, effective_noise, percent
from oomscope.probe.job import ProgramTarget
from oomscope.units import format_apart

_PLAIN = Noise(confidence=0.0, repeats=1)


@dataclass(frozen=True, kw_only=True)
class LineAnswer:
    """How a search along a line ended."""

    kind: Literal["found", "no_culprit", "ends_invalid", "out_of_time"]
    reason: str = ""
    found: SearchFinding | None = None
    """The positions between which the line turns from good to bad, once both ends are known."""
    confidence: float | None = None
    """The probability that the answer is right, where probes were repeated."""


@dataclass
class LineSearcher:
    """Searches lines, with one probe an answer or with repeats of those that decide."""

    asked_for: Noise | None
    _may_differ: bool = False
    """Whether probes are known to run on a card, or a program to do something else in each run."""
    _has_repeated: bool = False

    def run(self, line: Line) -> LineAnswer:
        """Search ``line``, and return the answer."""
        if line.merge is not None and line.is_unchanged:
            return LineAnswer(kind="no_culprit", reason="nothing on it changes what is measured")
        noise = None if line.last == 0 else self.noise_of(line)
        answer = LineSearch(line, noise).run()
        if noise is not None or not self._differs(line, answer):
            return answer
        return LineSearch(line, self.noise_of(line)).run()

    def noise_of(self, line: Line) -> Noise | None:
        """Return how noise is treated; None for a plain search. The good end may be probed to know the backend."""
        if self.asked_for is None and not self._may_differ:
            self._may_differ = self._is_on_card(line)
        return effective_noise(self.asked_for, may_differ=self._may_differ)

    def _differs(self, line: Line, answer: LineAnswer) -> bool:
        """Whether a program does something else when the probes that decide are repeated; asked once a search.

        Where a probe reads unknown values, it has compared two runs itself.
        """
        if self._has_repeated or self.asked_for is not None or line.merge is not None or line.last == 0:
            return False
        self._has_repeated = True
        once = [position for position in _deciding(line, answer) if _is_run_once(line, position)]
        for number, position in enumerate(once):
            first, then = line.records[position], once[number + 1 :]
            try:
                again = line.probe_again(position, partial(map, line.again, then))
            except OutOfTimeError:
                return False
            if again is not None and (difference := _difference(first, again)):
                line.prober.note(
                    f"{line.commit(position).short} was probed again and {difference}: the program allocates "
                    f"differently in each run, so that commits are probed until an answer is {percent(CONFIDENCE)} "
                    "sure; seed the random numbers that set lengths or order"
                )
                self._may_differ = True
                return True
        return False

    def _is_on_card(self, line: Line) -> bool:
        first = line.experiment(0)
        if isinstance(first, Untestable) or first.job.backend == "virtual":
            return False
        if not line.results:
            try:
                line.probe(0, "good end", LineSearch(line).ends_ahead)
            except OutOfTimeError:
                return False
        return any(result.backend == "cuda" for result in line.results.values())


def _deciding(line: Line, answer: LineAnswer) -> Iterator[int]:
    """Yield the positions on which ``answer`` rests: where the line turns, or an end that is not what it is called."""
    if answer.found is not None:
        yield from (answer.found.last_good, answer.found.first_bad)
        return
    for position, expected in ((0, Answer.GOOD), (line.last, Answer.BAD)):
        if position in line.records and line.records[position].answer is not expected:
            yield position


def is_started(experiment: Experiment | Untestable) -> bool:
    """Whether ``experiment`` starts a program as it is."""
    return isinstance(experiment, Experiment) and isinstance(experiment.job.target, ProgramTarget)


def _is_run_once(line: Line, position: int) -> bool:
    """Whether the answer of ``position`` rests on one run of a program."""
    result = line.results.get(position)
    if result is None or result.outcome == "error" or result.unknown_reads:
        return False
    return is_started(line.experiment(position))


def _difference(first: ProbeRecord, again: ProbeRecord) -> str:
    """Return in what a further probe of the same differs from the ``first``; empty if it does not."""
    if first.peak is not None and again.peak is not None:
        sizes = (again.peak.requested_bytes, first.peak.requested_bytes)
        if sizes[0] != sizes[1]:
            return "requested {} instead of {}".format(*format_apart(*sizes))
    return f"is {again.answer.value} instead of {first.answer.value}" if again.answer is not first.answer else ""


@dataclass
class LineSearch:
    """A search along one line."""

    line: Line
    noise: Noise | None = None
    _places: Sequence[int] = ()
    """The positions that the current bisection is over."""
    _state: RepeatedSearch = field(init=False)
    """State of the current bisection, over places in ``_places``."""
    _has_begun: bool = False

    def __post_init__(self) -> None:
        self._begin(self.line.asked_first)

    def run(self) -> LineAnswer:
        """Check the ends, search between them and return the answer."""
        line = self.line
        try:
            answer = self._ends() if line.merge is None else self._ends_of_branch()
            answer = answer or self._between_ends()
        except OutOfTimeError:
            answer = self._stopped()
        if answer.found is None:
            return answer
        if not line.is_bounded(answer.found):
            if answer.kind == "out_of_time":
                return LineAnswer(kind="out_of_time", reason=answer.reason)
            why = f"no commit from {line.end_names[0]} on has answered good"
            if 0 in line.records and line.records[0].answer is Answer.UNTESTABLE:
                why = self._cannot_be_tested(0)
            return LineAnswer(kind="ends_invalid", reason=why)
        if self.noise is not None:
            line.adopt_agreeing(answer.found)
        return answer

    def _ends(self) -> LineAnswer | None:
        """Check both ends, and return the answer that they give by themselves."""
        line = self.line
        if 0 not in line.records:
            self._ask(0, "good end", self.ends_ahead)
        if line.last not in line.records:
            self._ask(line.last, "bad end", self.ends_ahead)
        for end in (0, line.last):
            if line.records[end].answer is Answer.UNTESTABLE:
                return LineAnswer(kind="ends_invalid", reason=self._cannot_be_tested(end))
        return None

    def _ends_of_branch(self) -> LineAnswer | None:
        """Check tip and beginning of a branch, and return the answer that they give by themselves.

        A good tip rules the branch out. An untestable beginning is one more untestable position: a good commit after it
        will do.
        """
        line = self.line
        tip = line.records.get(line.tip) or self._ask(line.tip, "bad end", self.ends_ahead)
        if tip.answer is Answer.GOOD and self._is_good(line.tip):
            with contextlib.suppress(OutOfTimeError):
                self._ask(0, "good end", self.ends_ahead)  # only the steps need the beginning
            return LineAnswer(kind="no_culprit", reason=f"its tip is good: {tip.reason}")
        if 0 not in line.records:
            self._ask(0, "good end", self.ends_ahead)
        return None

    def _between_ends(self) -> LineAnswer:
        """Search between the ends; where the chosen paths do not explain the change, among all commits."""
        line = self.line
        answer = self._bisect(line.asked_first)
        found = answer.found
        if found is None or set(found.suspects) <= set(line.asked_first):
            return answer
        span = range(found.last_good, found.first_bad + 1)
        choice = [position for position in found.suspects if position in line.chosen]
        answer = self._bisect(span, first=span[-2] if choice == [found.first_bad] else None)
        if answer.found is not None and not set(answer.found.suspects) & set(line.chosen):
            commits = "commits" if line.merge is None else f"commits of the branch merged by {line.merge.short}"
            among = f"{commits} between {line.commit(span[0]).short} and {line.commit(span[-1]).short}"
            line.prober.note(f"the change {OUTSIDE}: the search went on among all {among}")
        return answer

    def _begin(self, places: Sequence[int]) -> None:
        """Begin a bisection over ``places`` with all that was answered."""
        noise = self.noise or _PLAIN
        merge = {len(places) - 1} if self.line.merge is not None and places[-1] == self.line.last else set()
        state = RepeatedSearch(
            last=len(places) - 1, enough=noise.confidence, repeats=noise.repeats, fixed=frozenset(merge)
        )
        for place, position in enumerate(places):
            for record, _ in self.line.given.get(position, ()):
                state = state.with_answer(place, record.answer)
        self._places, self._state = places, state

    def _bisect(self, places: Sequence[int], first: int | None = None) -> LineAnswer:
        """Search among ``places``, whose ends are known, and return the answer.

        Args:
            places: positions in order.
            first: the one to ask about before the search chooses.
        """
        self._begin(places)
        self._has_begun = True
        wanted = self._state.wanted if first is None else places.index(first)
        while wanted is not None:
            self._ask(places[wanted], "search", self._ahead)
            wanted = self._state.wanted
        return self._concluded()

    def _concluded(self) -> LineAnswer:
        """Return the answer of a bisection that is over."""
        line, state = self.line, self._state
        sureness = f", {percent(state.confidence)} sure" if self.noise is not None else ""
        confidence = state.confidence if self.noise is not None else None
        good_name, bad_name = line.end_names
        first, last = line.records[0], line.records[line.last]
        if state.conclusion == "already bad" and last.answer is Answer.GOOD and line.merge is None:
            return LineAnswer(kind="ends_invalid", reason="the good end is bad and the bad end good: swap them")
        if state.conclusion == "already bad":
            return LineAnswer(kind="ends_invalid", reason=f"{good_name} is bad already{sureness}: {first.reason}")
        if state.conclusion == "still good":
            return LineAnswer(kind="no_culprit", reason=f"{bad_name} is good{sureness}: {last.reason}")
        reason = ""
        if not state.is_sure and self.noise is not None:
            reason = (
                f"answers contradict each other, and none is {percent(self.noise.confidence)} sure after up to "
                f"{self.noise.repeats} probes of a commit"
            )
        return LineAnswer(kind="found", reason=reason, found=self._found(), confidence=confidence)

    def _stopped(self) -> LineAnswer:
        line = self.line
        if not self._has_begun:
            why = f"{OUT_OF_TIME} before both ends were checked" if line.merge is None else OUT_OF_TIME
            return LineAnswer(kind="out_of_time", reason=why)
        sure = f" before one answer was {percent(self.noise.confidence)} sure" if self.noise is not None else ""
        search = self._state.bisection
        found = SearchFinding(self._places[search.good], self._places[search.bad])
        return LineAnswer(kind="out_of_time", reason=f"{OUT_OF_TIME}{sure}", found=found)

    def _found(self) -> SearchFinding:
        """Return what was found in positions, with those between its places that it never asks about."""
        found = self._state.found
        return SearchFinding(self._places[found.last_good], self._places[found.first_bad])

    def _is_good(self, position: int) -> bool:
        """Repeat the probe of ``position`` until it is sure to be good, or bad."""
        noise = self.noise or _PLAIN
        while True:
            state = RepeatedSearch(last=1, enough=noise.confidence, repeats=noise.repeats, fixed=frozenset({0}))
            for record, _ in self.line.given[position]:
                state = state.with_answer(1, record.answer)
            if state.wanted is None:
                return state.conclusion == "still good" and state.is_sure
            self._ask(position, "bad end", tuple)

    def _cannot_be_tested(self, end: int) -> str:
        return f"{self.line.end_names[end > 0]} cannot be tested: {self.line.records[end].reason}"

    def _ask(self, position: int, role: Role, likely: Ahead) -> ProbeRecord:
        record = self.line.probe(position, role, likely, anew=self.noise is not None)
        if position in self._places:
            self._state = self._state.with_answer(self._places.index(position), record.answer)
        return record

    def ends_ahead(self) -> Iterator[Experiment | Untestable]:
        """Yield both ends, and the bisection that follows unless they answer by themselves."""
        yield from (self._experiment(end, 0) for end in self.line.checked if end not in self.line.given)
        if self.line.last > 0:
            yield from self._ahead()

    def _ahead(self) -> Iterator[Experiment | Untestable]:
        """Yield the experiments that the bisection is likely to ask for."""
        places, state = self._places, self._state

        def experiment(question: tuple[int, int]) -> Experiment | Untestable:
            place, times = question
            return self._experiment(places[place], times - state.times(place))

        wanted = ahead(
            [state],
            lambda each: None if each.wanted is None else (each.wanted, each.times(each.wanted)),
            lambda each, question, answer: each.with_answer(question[0], answer),
            lambda question: self.line.prober.known_answer(experiment(question)),
        )
        return map(experiment, wanted)

    def _experiment(self, position: int, later: int) -> Experiment | Untestable:
        return self.line.again(position, later) if self.noise is not None else self.line.experiment(position)
