"""Bisection over a line of positions, some of which cannot be tested: pure, one question at a time.

A :class:`Search` is a value. It names the next position to test; :meth:`Search.with_answer` returns the search that
knows the answer. The caller decides who answers and how many questions run at once. Untestable positions are taken out
of the line as they are met, so they cost themselves and nothing else.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TypeVar


class Answer(Enum):
    """What is known of one position."""

    GOOD = "good"
    BAD = "bad"
    UNTESTABLE = "untestable"


PATIENCE = 8
"""Untestable positions met before a search pays for getting away from them (see :func:`extra_probes`)."""


@dataclass(frozen=True)
class SearchFinding:
    """The answer of a search: the line turns bad between two positions that are known."""

    last_good: int
    first_bad: int

    @property
    def suspects(self) -> tuple[int, ...]:
        """The positions that may be the first bad one, in order."""
        return tuple(range(self.last_good + 1, self.first_bad + 1))

    @property
    def is_culprit(self) -> bool:
        """Whether it is known which."""
        return len(self.suspects) == 1


@dataclass(frozen=True, kw_only=True)
class Search:
    """The state of a bisection over positions 0 to ``last``, where 0 is known good and ``last`` known bad.

    Args:
        last: number of candidates; each of 1 to ``last`` may be the first bad one.
        good: the nearest position known good.
        bad: the nearest position known bad.
        untestable: positions that cannot be tested, sorted.
        spent: good and bad answers so far, the two ends not counted.

    The positions asked for number at most ``ceil(log2(last))`` plus the untestable ones met (plus one more for every
    doubling of the latter from ``PATIENCE`` on). With no untestable position they are those of plain bisection.
    A line that turns from good to bad more than once is no error: one such turn is found.
    """

    last: int
    good: int = 0
    bad: int
    untestable: tuple[int, ...] = ()
    spent: int = 0

    @classmethod
    def over(cls, last: int) -> Search:
        """Return the search among ``last`` candidates.

        Raises:
            ValueError: there is no candidate.
        """
        if last < 1:
            raise ValueError(f"a search needs a candidate, not {last}")
        return cls(last=last, bad=last)

    @cached_property
    def open(self) -> tuple[int, ...]:
        """The positions between the nearest good and bad ones that may yet be tested."""
        hidden = set(self.untestable)
        return tuple(position for position in range(self.good + 1, self.bad) if position not in hidden)

    @cached_property
    def wanted(self) -> int | None:
        """The position to test next; None when the search is over."""
        return _choose(self) if self.open else None

    @property
    def probes_left(self) -> int:
        """The good and bad answers that may still be needed."""
        return max(self._budget, _halvings(len(self.open) + 1)) if self.open else 0

    @property
    def _budget(self) -> int:
        allowed = _halvings(self.last) + extra_probes(len(self.untestable))
        return allowed - self.spent

    @property
    def found(self) -> SearchFinding:
        """What is known now; final once nothing is wanted."""
        return SearchFinding(self.good, self.bad)

    def with_answer(self, position: int, answer: Answer) -> Search:
        """Return the search that also knows the answer for ``position``, whether or not it was wanted.

        A position outside the open range changes nothing: a parallel driver may bring answers that came too late.
        """
        if not self.good < position < self.bad or position in self.untestable:
            return self
        if answer is Answer.UNTESTABLE:
            return replace(self, untestable=tuple(sorted((*self.untestable, position))))
        if answer is Answer.GOOD:
            return replace(self, good=position, spent=self.spent + 1)
        return replace(self, bad=position, spent=self.spent + 1)


def extra_probes(met: int) -> int:
    """Return how many probes more than plain bisection's it may take to get past untestable positions.

    To stay within ``ceil(log2 n)`` answers the search may leave the middle only by as much as untestable positions
    have thinned it out, which crosses a long run step by step. Once ``PATIENCE`` have been met, one probe more for
    each doubling buys the freedom to jump.
    """
    return max(0, met.bit_length() - PATIENCE.bit_length() + 1)


def _choose(search: Search) -> int:
    """Return the open position worth most: how evenly it splits, times the chance that it can be tested.

    Considered are those that keep the rest within budget whichever way the answer falls. The chance grows with the
    distance from known untestable positions: a run of them of length L is taken to go on for about L more (what has
    lasted long lasts long).
    """
    candidates = len(search.open) + 1
    middle = candidates // 2 - 1
    # Positions beyond the range that was given up show nothing of the untestable runs inside it.
    near = [position for position in search.untestable if search.good < position < search.bad]
    if not near:
        return search.open[middle]
    largest = 2 ** (search.probes_left - 1)
    window = range(max(0, candidates - largest - 1), min(len(search.open), largest))
    runs = runs_of(near)

    def worth(index: int) -> tuple[float, int]:
        share = (index + 1) / candidates
        information = -share * math.log2(share) - (1 - share) * math.log2(1 - share)
        return information * chance_of(search.open[index], runs), -abs(index - middle)

    return search.open[max(window, key=worth)]


def runs_of(positions: list[int]) -> list[tuple[int, int]]:
    """Return the first and last position of each run of neighbours, ``positions`` being sorted."""
    runs: list[tuple[int, int]] = []
    for position in positions:
        if runs and position == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], position
        else:
            runs.append((position, position))
    return runs


def chance_of(position: int, runs: list[tuple[int, int]]) -> float:
    """Return the chance that ``position`` can be tested, from the runs next to it on either side."""
    after = bisect_left(runs, (position, position))
    chance = 1.0
    for first, end in runs[max(0, after - 1) : after + 1]:
        length = end - first + 1
        distance = min(abs(position - first), abs(position - end))
        chance *= distance / (distance + length)
    return chance


def _halvings(candidates: int) -> int:
    """Return ceil(log2(candidates))."""
    return (candidates - 1).bit_length()


State = TypeVar("State")
Asked = TypeVar("Asked")


def ahead(
    states: Iterable[State],
    wanted: Callable[[State], Asked | None],
    with_answer: Callable[[State, Asked, Answer], State],
    known: Callable[[Asked], Answer | None],
) -> Iterator[Asked]:
    """Yield what will be asked from ``states`` on, those first that are likeliest.

    Good and bad are taken to be equally likely wherever the answer is not known, so that those come first that rest on
    the fewest guesses. Nothing is computed before it is asked for.

    Args:
        states: searches that are all going to be finished, the first one first.
        wanted: the question of a state; None when its search is over.
        with_answer: the state that knows an answer.
        known: the answer to a question, as far as it is there already.
    """
    order = count()
    heap = [(0, next(order), state) for state in states]
    heapify(heap)
    while heap:
        guesses, _, state = heappop(heap)
        question = wanted(state)
        if question is None:
            continue
        yield question
        answer = known(question)
        for each in (Answer.GOOD, Answer.BAD) if answer is None else (answer,):
            heappush(heap, (guesses + (answer is None), next(order), with_answer(state, question, each)))
