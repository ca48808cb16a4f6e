"""One search along a line of commits whose answers may be wrong: asks the prober what the posterior wants to know.

What :class:`~oomscope.bisect.line_search.LineSearch` does for believed answers. The ends are candidates like all others
here (the good end may be bad already, the bad end good), and chosen paths are a prior: half of the belief is theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import starmap

from oomscope.bisect.deadline import OutOfTimeError
from oomscope.bisect.experiment import Experiment, Untestable
from oomscope.bisect.foresight import ahead
from oomscope.bisect.line_search import OUTSIDE, LineAnswer, LineSearch
from oomscope.bisect.merges import BranchSearch
from oomscope.bisect.noise import Noise, Posterior, percent
from oomscope.bisect.posterior import PosteriorSearch
from oomscope.bisect.result import Role
from oomscope.bisect.search import Answer

CHOSEN = 0.5
"""Prior probability of the chosen paths, where there are others."""


@dataclass
class Searching:
    """Searches lines, believing or weighing what is answered.

    Args:
        asked_for: how to meet noise; None leaves it to the backend. A simulated run repeats to the byte and is
            believed. On a real card others may hold memory, and work may come in another order: answers are weighed.
    """

    asked_for: Noise | None
    _default: Noise | None = None

    def run(self, search: LineSearch) -> LineAnswer:
        """Search the line of ``search``, and return the answer."""
        noise = self.noise_of(search)
        is_unchanged = search.track.last == 0 or (isinstance(search, BranchSearch) and search.is_unchanged)
        if noise is None or is_unchanged:
            return search.run()
        return NoisyLine(search, noise).run()

    def noise_of(self, search: LineSearch) -> Noise | None:
        """Return how noise is met; None for a plain search. The good end may be probed to know the backend."""
        if self.asked_for is not None:
            return self.asked_for if self.asked_for.is_heeded else None
        if self._default is None and self._is_on_card(search):
            self._default = Noise()
        return self._default

    def _is_on_card(self, search: LineSearch) -> bool:
        first = search.experiment(0)
        if isinstance(first, Untestable) or first.job.backend == "sim":
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
        search: the line, and what was answered along it.
        noise: how sure to be.
    """

    search: LineSearch
    noise: Noise
    _state: PosteriorSearch = field(init=False)

    def __post_init__(self) -> None:
        self._state = PosteriorSearch(
            last=self.search.track.last,
            enough=self.noise.confidence,
            repeats=self.noise.repeats,
            prior=prior_of(self.search.track.last, self.search.track.chosen),
        )
        for position, answers in self.search.answers.items():
            for record, _ in answers.given:
                self._state = self._state.told(position, record.answer)

    def run(self) -> LineAnswer:
        """Probe the ends, then what tells most, until one answer is sure enough; and return it."""
        answer = None
        try:
            for position, role in self._ends:
                if position not in self.search.answers:
                    self._ask(position, role)
                    answer = answer or self._invalid_end(position)
            while answer is None and (wanted := self._state.wanted) is not None:
                self._ask(wanted, self._role)
        except OutOfTimeError:
            answer = self._stopped()
        answer = answer or self._answer()
        if answer.found is not None:
            self.search.settle(answer.found)
        self.search.posterior = self._state
        return answer

    @property
    def _ends(self) -> tuple[tuple[int, Role], ...]:
        if isinstance(self.search, BranchSearch):
            return (self.search.tip, "merged branch"), (0, "merged branch")
        return (0, "good end"), (self.search.track.last, "bad end")

    @property
    def _role(self) -> Role:
        return "merged branch" if isinstance(self.search, BranchSearch) else "search"

    def _invalid_end(self, position: int) -> LineAnswer | None:
        """Return the answer that an untestable end of the line is; a branch can do without."""
        record = self.search.records[position]
        if record.answer is not Answer.UNTESTABLE or isinstance(self.search, BranchSearch):
            return None
        end = "good" if position == 0 else "bad"
        return LineAnswer(kind="ends_invalid", reason=f"the {end} end cannot be tested: {record.reason}")

    def _ask(self, position: int, role: Role) -> None:
        state = self._state
        self.search.prober.foresee(lambda: self._ahead(state))
        record = self.search.probe(position, role, self.search.times(position))
        self._state = state.told(position, record.answer)

    def _ahead(self, state: PosteriorSearch) -> Iterator[Experiment | Untestable]:
        """Yield what is likely to be measured next: the ends that are not known, then what the posterior wants."""
        for end, _ in self._ends:
            if end not in self.search.answers:
                yield self.search.experiment(end)
                state = state.told(end, Answer.GOOD if end == 0 else Answer.BAD)
        yield from starmap(self.search.repeated, questions_ahead(state, self._known))

    def _known(self, question: tuple[int, int]) -> Answer | None:
        return self.search.prober.foreseen(self.search.repeated(*question))

    def _answer(self) -> LineAnswer:
        state = self._state
        if not state.is_sure:
            return LineAnswer(kind="found", reason=self._unsure(), found=state.found)
        first, end = state.leading
        if first == 0:
            return LineAnswer(kind="ends_invalid", reason=f"the good end is bad already, {sure(state)}")
        if end > state.last:
            return LineAnswer(kind="no_culprit", reason=f"the bad end is good, {sure(state)}")
        if isinstance(self.search, BranchSearch) and first == end == state.last and self.search.tip < end:
            return LineAnswer(kind="no_culprit", reason=f"its tip is good, {sure(state)}")
        found = state.found
        if not set(found.suspects) & set(self.search.track.chosen):
            self.search.prober.note(f"the change {OUTSIDE}, {sure(state)}")
        return LineAnswer(kind="found", found=found)

    def _unsure(self) -> str:
        state = self._state
        outside = f"; that there is no culprit has {percent(state.none)}" if state.none >= 1 - state.enough else ""
        return (
            f"answers contradict each other, and none is {percent(state.enough)} sure after up to {state.repeats} "
            f"probes of a commit{outside}"
        )

    def _stopped(self) -> LineAnswer:
        if not all(end in self.search.answers for end, _ in self._ends):
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


def posterior_of(search: LineSearch) -> Posterior | None:
    """Return what ``search`` believed at its end, in the words of a report; None where it did not weigh answers."""
    state = search.posterior
    if state is None:
        return None
    probabilities = state.probabilities.tolist()
    good, bad = state.false_good_rate, state.false_bad_rate
    return Posterior(
        rows=tuple((search.commit(place).hash, probabilities[place]) for place in range(1, state.last + 1)),
        none=state.none,
        already=state.already,
        false_good=good.mean,
        false_good_interval=(good.low, good.high),
        false_bad=bad.mean,
        false_bad_interval=(bad.low, bad.high),
        confidence=state.confidence,
        wanted=state.enough,
    )


def sure(state: PosteriorSearch) -> str:
    """Return how sure the leading answer is, in words."""
    return f"{percent(state.confidence)} sure"
