"""Speculation: the questions that a search is likely to ask next, under answers that are not known yet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TypeVar

from oomscope.bisect.search.line import Answer

State = TypeVar("State")
Asked = TypeVar("Asked")


def _unknown(_state: object, _question: object) -> float:
    return 0.5


def ahead(
    states: Iterable[State],
    wanted: Callable[[State], Asked | None],
    told: Callable[[State, Asked, Answer], State],
    known: Callable[[Asked], Answer | None],
    predicted: Callable[[State, Asked], float] = _unknown,
) -> Iterator[Asked]:
    """Yield what will be asked from ``states`` on, those first that are likeliest.

    Unless ``predicted`` says more, good and bad are taken to be equally likely wherever the answer is not known, so
    that those come first that rest on the fewest guesses. Nothing is computed before it is
    asked for, so that a few questions cost little however many there are.

    Args:
        states: searches that are all going to be finished, the first one first.
        wanted: the question of a state; None when its search is over.
        told: the state that knows an answer.
        known: the answer to a question, as far as it is there already.
        predicted: the probability that the answer to a question is bad.
    """
    order = count()
    heap = [(0.0, next(order), state) for state in states]
    heapify(heap)
    while heap:
        unlikely, _, state = heappop(heap)
        question = wanted(state)
        if question is None:
            continue
        yield question
        answer = known(question)
        bad = predicted(state, question)
        chances = {answer: 1.0} if answer is not None else {Answer.GOOD: 1 - bad, Answer.BAD: bad}
        for each, chance in chances.items():
            if chance > 0:
                heappush(heap, (unlikely - math.log2(chance), next(order), told(state, question, each)))
