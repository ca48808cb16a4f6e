"""One search along a line of commits whose answers may be wrong: asks the prober what the posterior wants to know.

:class:`~oomscope.bisect.lines.line_search.LineSearch` does the same for answers that are always right. Here the ends
are candidates like all others (the good end may be bad already, the bad end good), and chosen paths are a prior: half
of the probability is theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from oomscope.bisect.lines.line_search import LineAnswer, LineSearch
from oomscope.bisect.lines.probed_line import OUTSIDE, ProbedLine
from oomscope.bisect.results.noise import Noise, Posterior, heeded, percent
from oomscope.bisect.results.result import Role
from oomscope.bisect.run.deadline import OutOfTimeError
from oomscope.bisect.run.experiment import Experiment, Untestable
from oomscope.bisect.search.line import Answer
from oomscope.bisect.search.posterior import PosteriorSearch
from oomscope.bisect.search.speculation import ahead

CHOSEN = 0.5
"""Prior probability of the chosen paths, where there are others."""


@dataclass
class LineSearcher:
    """Searches lines, believing or weighing what is answered.

    Args:
        asked_for: how to meet noise; None leaves it to the backend.
    """

    asked_for: Noise | None
    _is_known_on_card: bool = False

    def run(self, search: LineSearch) -> LineAnswer:
        """Search the line of ``search``, and return the answer."""
        noise = self.noise_of(search)
        if noise is None or search.is_unchanged:
            return search.run()
        return NoisyLine(search, noise).run()

    def noise_of(self, search: LineSearch) -> Noise | None:
        """Return how noise is met; None for a plain search. The good end may be probed to know the backend."""
        if self.asked_for is None and not self._is_known_on_card:
            self._is_known_on_card = self._is_on_card(search)
        return heeded(self.asked_for, is_on_card=self._is_known_on_card)

    def _is_on_card(self, search: LineSearch) -> bool:
        first = search.experiment(0)
        if isinstance(first, Untestable) or first.job.backend == "virtual":
            return False
        if not search.results:
            try:
                search.foresee(0, search.track.last)
                search.probe(0, "good end")
            except OutOfTimeError:
                return False
        return any(result.backend == "cuda" for result in search.results.values())


@dataclass
class NoisyLine:
    """A search along one line that weighs its answers.

    Args:
        line: where, and what was answered along it.
        noise: how sure to be.
    """

    line: ProbedLine
    noise: Noise
    _state: PosteriorSearch = field(init=False)

    def __post_init__(self) -> None:
        self._state = PosteriorSearch(
            last=self.line.track.last,
            enough=self.noise.confidence,
            repeats=self.noise.repeats,
            prior=prior_of(self.line.track.last, self.line.track.chosen),
        )
        for position, answers in self.line.answers.items():
            for record, _ in answers.given:
                self._state = self._state.told(position, record.answer)

    def run(self) -> LineAnswer:
        """Probe the ends, then what tells most, until one answer is sure enough; and return it."""
        ends = self.line.ends
        try:
            for position in self.line.checked:
                if position not in self.line.answers:
                    self._ask(position, ends.good_role if position == 0 else ends.bad_role)
            answer = self._untestable_end()
            while answer is None and (wanted := self._state.wanted) is not None:
                self._ask(wanted, ends.between_role)
        except OutOfTimeError:
            answer = self._stopped()
        answer = self._bounded(answer or self._answer())
        if answer.found is not None:
            self.line.settle(answer.found)
        self.line.posterior = self._state
        return answer

    def _untestable_end(self) -> LineAnswer | None:
        """Return the answer that an untestable end of the line is, unless the line can do without."""
        silent = [end for end in sorted(self.line.checked) if self._state.is_silent(end)]
        if not silent or not self.line.ends.are_needed:
            return None
        return LineAnswer(kind="ends_invalid", reason=self._cannot_be_tested(silent[0]))

    def _cannot_be_tested(self, end: int) -> str:
        name = self.line.ends.good if end == 0 else self.line.ends.bad
        return f"{name} cannot be tested: {self.line.records[end].reason}"

    def _ask(self, position: int, role: Role) -> None:
        state = self._state
        self.line.prober.foresee(lambda: self._ahead(state))
        record = self.line.probe(position, role, anew=True)
        self._state = state.told(position, record.answer)

    def _ahead(self, state: PosteriorSearch) -> Iterator[Experiment | Untestable]:
        """Yield what is likely to be measured next: the ends that are not known, then what the posterior wants."""
        for end in self.line.checked:
            if end not in self.line.answers:
                yield self.line.again(end)
                state = state.told(end, Answer.GOOD if end == 0 else Answer.BAD)
        yield from map(self._experiment, questions_ahead(state, self._known))

    def _known(self, question: tuple[int, int]) -> Answer | None:
        return self.line.prober.foreseen(self._experiment(question))

    def _experiment(self, question: tuple[int, int]) -> Experiment | Untestable:
        position, times = question
        return self.line.again(position, later=times - self._state.times(position))

    def _answer(self) -> LineAnswer:
        state, line = self._state, self.line
        if not state.is_sure:
            return LineAnswer(kind="found", reason=self._unsure(), found=state.found)
        first, end = state.leading
        if first == 0:
            reason = f"{line.ends.good} is bad already, {sure(state)}" if end == 0 else self._cannot_be_tested(0)
            return LineAnswer(kind="ends_invalid", reason=reason)
        if end > state.last:
            return self._without_bad_end(is_known=first == end)
        if first == end == state.last and line.is_end_of_branch(end):
            return LineAnswer(kind="no_culprit", reason=f"its tip is good, {sure(state)}")
        found = state.found
        if not set(found.suspects) & set(line.track.chosen):
            line.prober.note(f"the change {OUTSIDE}, {sure(state)}")
        return LineAnswer(kind="found", found=found)

    def _without_bad_end(self, *, is_known: bool) -> LineAnswer:
        """Return the answer where nothing on the line is bad; a merge that turns out good acquits nobody."""
        if not is_known:
            return LineAnswer(kind="ends_invalid", reason=self._cannot_be_tested(self._state.last))
        kind: Literal["no_culprit", "ends_invalid"] = "no_culprit" if self.line.merge is None else "ends_invalid"
        return LineAnswer(kind=kind, reason=f"{self.line.ends.bad} is good, {sure(self._state)}")

    def _bounded(self, answer: LineAnswer) -> LineAnswer:
        """Return ``answer``; without what it found where no commit that answered good lies before that."""
        if answer.found is None or self.line.is_bounded(answer.found):
            return answer
        why = f"no commit from {self.line.ends.good} on has answered good"
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
        if not all(end in self.line.answers for end in self.line.checked):
            return LineAnswer(kind="out_of_time", reason="the deadline passed before both ends were checked")
        reason = f"the deadline passed before one answer was {percent(self._state.enough)} sure"
        return LineAnswer(kind="out_of_time", reason=reason, found=self._state.found)


def questions_ahead(
    state: PosteriorSearch, known: Callable[[tuple[int, int]], Answer | None]
) -> Iterator[tuple[int, int]]:
    """Yield what ``state`` is likely to ask, likeliest first: positions, each with how often it was asked before.

    Args:
        state: of the search; its own question comes first.
        known: the answer to a question, as far as it is there already.
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


def posterior_of(search: ProbedLine) -> Posterior | None:
    """Return what ``search`` believed at its end, in the words of a report; None where it did not weigh answers."""
    state = search.posterior
    if state is None:
        return None
    probabilities = state.probabilities.tolist()
    return Posterior(
        rows=tuple((search.commit(place).hash, probabilities[place]) for place in range(1, state.last + 1)),
        none=state.none,
        already=state.already,
        confidence=state.confidence,
        wanted=state.enough,
    )


def sure(state: PosteriorSearch) -> str:
    """Return how sure the leading answer is, in words."""
    return f"{percent(state.confidence)} sure"
