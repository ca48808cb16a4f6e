"""How often a bisection is right where answers are wrong now and then, and what that costs.

Lines turn bad at a random commit; a good commit answers bad, and a bad one good, each at a rate of its own. Both ends
are probed as well. "plain" believes every answer; "best of 3" and "best of 5" probe each commit until two, or three,
answers agree; oomscope's search repeats both sides of the change until they are 95 % sure, or gives no answer.
Rounds are counted with several jobs: in each round all of them begin what is likeliest to be asked.

    python benchmarks/bisect_noise.py [CASES] [--jobs K] [--commits N ...]
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Generic, Protocol, Self, TypeVar

from oomscope.bisect.search.line import Answer, Search, ahead
from oomscope.bisect.search.repeats import RepeatedSearch

Question = tuple[int, int]
"""A position, and how often it was asked before."""
RATES = ((0.0, 0.0), (0.01, 0.01), (0.05, 0.05), (0.1, 0.1), (0.2, 0.2), (0.0, 0.2), (0.2, 0.0))
"""Of a good commit to answer bad, and of a bad one to answer good."""
MOST_LOOKED_AT = 64
ROUNDS_OF = 5
"""One case in so many is run with several jobs as well."""


class State(Protocol):
    """A search in progress."""

    @property
    def question(self) -> Question | None:
        """What is asked next."""
        ...

    def with_answer(self, question: Question, answer: Answer) -> Self:
        """Return the search that knows an answer."""
        ...

    @property
    def culprit(self) -> int | None:
        """The answer; None for none."""
        ...


@dataclass(frozen=True)
class Voting:
    """Plain bisection that asks about each position until ``needed`` answers agree."""

    search: Search
    needed: int
    votes: tuple[Answer, ...] = ()
    ends: tuple[Answer, ...] = ()

    @property
    def question(self) -> Question | None:
        """Both ends first, then what the search wants."""
        if len(self.ends) < 2:
            return (0, self.search.last)[len(self.ends)], len(self.votes)
        if self.ends != (Answer.GOOD, Answer.BAD) or self.search.wanted is None:
            return None
        return self.search.wanted, len(self.votes)

    def with_answer(self, question: Question, answer: Answer) -> Voting:
        """Count the vote; enough of one kind are the answer."""
        votes = (*self.votes, answer)
        if votes.count(answer) < self.needed:
            return replace(self, votes=votes)
        if len(self.ends) < 2:
            return replace(self, votes=(), ends=(*self.ends, answer))
        return replace(self, votes=(), search=self.search.with_answer(question[0], answer))

    @property
    def culprit(self) -> int | None:
        """Return what the search found; None where the ends were not as they were called."""
        return self.search.found.first_bad if self.ends == (Answer.GOOD, Answer.BAD) else None


@dataclass(frozen=True)
class Repeating:
    """oomscope's search."""

    search: RepeatedSearch

    @property
    def question(self) -> Question | None:
        """Both ends first, then what the search wants."""
        for end in (0, self.search.last):
            if not self.search.times(end):
                return end, 0
        wanted = self.search.wanted
        return None if wanted is None else (wanted, self.search.times(wanted))

    def with_answer(self, question: Question, answer: Answer) -> Repeating:
        """Count the answer."""
        return Repeating(self.search.with_answer(question[0], answer))

    @property
    def culprit(self) -> int | None:
        """Return what was found, if it is sure."""
        return self.search.found.first_bad if self.search.is_sure and self.search.conclusion == "found" else None


AnyState = TypeVar("AnyState", bound=State)
METHODS: dict[str, Callable[[int], State]] = {
    "plain": lambda last: Voting(Search.over(last), 1),
    "best of 3": lambda last: Voting(Search.over(last), 2),
    "best of 5": lambda last: Voting(Search.over(last), 3),
    "oomscope": lambda last: Repeating(RepeatedSearch(last=last, enough=0.95, repeats=20)),
}


@dataclass
class Case(Generic[AnyState]):
    """One line and one search along it; the same question has the same answer whoever asks."""

    state: AnyState
    last: int
    rates: tuple[float, float]
    seed: int
    known: dict[Question, Answer] = field(default_factory=dict)
    asked: int = 0
    rounds: int = 0

    def __post_init__(self) -> None:
        self.at = random.Random(self.seed).randint(1, self.last)  # noqa: S311 - cases that repeat, no secrets

    def run(self, jobs: int) -> None:
        """Search to the end."""
        while (question := self.state.question) is not None:
            if question not in self.known:
                self.rounds += 1
                for each in list(islice(self._unknown(), jobs)):
                    self.known[each] = self._answer(*each)
            self.asked += 1
            self.state = self.state.with_answer(question, self.known[question])

    def _unknown(self) -> Iterator[Question]:
        states: Iterable[AnyState] = [self.state]
        likely = ahead(
            states,
            lambda state: state.question,
            lambda state, question, answer: state.with_answer(question, answer),
            self.known.get,
        )
        seen = set(self.known)
        for question in islice(likely, MOST_LOOKED_AT):
            if question not in seen:
                seen.add(question)
                yield question

    def _answer(self, position: int, times: int) -> Answer:
        is_bad = position >= self.at
        rng = random.Random(f"{self.seed} {position} {times}")  # noqa: S311
        is_wrong = rng.random() < self.rates[is_bad]
        return Answer.BAD if is_bad != is_wrong else Answer.GOOD


def measured(name: str, last: int, rates: tuple[float, float], cases: int, jobs: int) -> str:
    """Return the cell of one method."""
    right = wrong = probes = rounds = 0
    for seed in range(cases):
        case = Case(METHODS[name](last), last, rates, seed)
        case.run(1)
        right += case.state.culprit == case.at
        wrong += case.state.culprit not in {case.at, None}
        probes += case.asked
    beside = range(0, cases, ROUNDS_OF)
    for seed in beside:
        case = Case(METHODS[name](last), last, rates, seed)
        case.run(jobs)
        rounds += case.rounds
    shares = f"{100 * right / cases:.0f} / {100 * wrong / cases:.0f} %"
    return f"{shares}, {probes / cases:.1f}, {rounds / len(beside):.1f}"


def main() -> None:
    """Print the table, in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="?", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--commits", type=int, nargs="+", default=[64, 256, 1000])
    given = parser.parse_args()
    print(f"{given.cases} cases each: right / wrong, mean probes, mean rounds with {given.jobs} jobs\n")
    print(f"| commits | good is bad | bad is good | {' | '.join(METHODS)} |")
    print("|---" * (3 + len(METHODS)) + "|")
    for last in given.commits:
        for rates in RATES:
            cells = [measured(name, last, rates, given.cases, given.jobs) for name in METHODS]
            print(f"| {last} | {rates[0]:.0%} | {rates[1]:.0%} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
