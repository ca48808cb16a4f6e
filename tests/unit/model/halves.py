"""Every second combination of options, in which any choice of all options but one still occurs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any


def half(*options: Sequence[Any], turn: int) -> Iterator[tuple[Any, ...]]:
    """Yield the combinations whose places add up to an even number with ``turn``; the next turn has the others."""
    for places in itertools.product(*(range(len(choices)) for choices in options)):
        if (sum(places) + turn) % 2 == 0:
            yield tuple(choices[place] for choices, place in zip(options, places, strict=True))
