"""What a search is going to ask: its questions under answers that are not known yet, likeliest first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TypeVar

from oomscope.bisect.search import Answer

State = TypeVar("State")
Asked = TypeVar("Asked")


def ahead(
    states: Iterable[State],
    wanted: Callable[[State], Asked | None],
    told: Callable[[State, Asked, Answer], State],
    known: Callable[[Asked], Answer | None],
) -> Iterator[Asked]:
    """Yield what will be asked from ``states`` on, those first that rest on the fewest guesses.

    Good and bad are taken to be equally likely wherever the answer is not known. Nothing is computed before it is
    asked for, so that a few questions cost little however many there are.

    Args:
        states: searches that are all going to be finished, the first one first.
        wanted: the question of a state; None when its search is over.
        told: the state that knows an answer.
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
        more, answers = (0, [answer]) if answer is not None else (1, [Answer.GOOD, Answer.BAD])
        for each in answers:
            heappush(heap, (guesses + more, next(order), told(state, question, each)))
