"""Few combinations of options, in which any two choices of different options still occur together."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any


def pairs(*options: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield combinations until all pairs of choices were there, each time the one with the most new pairs."""
    places = list(itertools.product(*(range(len(choices)) for choices in options)))
    of = {chosen: set(itertools.combinations(enumerate(chosen), 2)) for chosen in places}
    missing = set().union(*of.values())
    while missing:
        best = max(places, key=lambda chosen: len(of[chosen] & missing))
        missing -= of[best]
        yield tuple(choices[place] for choices, place in zip(options, best, strict=True))
