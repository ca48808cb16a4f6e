"""How a search treats answers that may be wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

CONFIDENCE: Final = 0.95
REPEATS: Final = 20


@dataclass(frozen=True, kw_only=True)
class Noise:
    """How sure a search has to be, and what it may take.

    Args:
        confidence: probability at which an answer is one.
        repeats: probes of one commit at most. With one, every answer is believed: the search is plain.
    """

    confidence: float = CONFIDENCE
    repeats: int = REPEATS

    @property
    def is_heeded(self) -> bool:
        """Whether a commit may be probed more than once at all."""
        return self.repeats > 1


def heeded(asked_for: Noise | None, *, is_on_card: bool) -> Noise | None:
    """Return how noise is met; None where every answer is believed.

    Args:
        asked_for: by the user; None leaves it to the backend. A run on a virtual card repeats to the byte: it is
            believed. On a real card others may hold memory, and work may come in another order: answers are weighed.
        is_on_card: whether probes run on a real card.
    """
    if asked_for is None:
        return Noise() if is_on_card else None
    return asked_for if asked_for.is_heeded else None


def percent(probability: float) -> str:
    """Return ``probability`` in words; what is short of certain is not rounded up to it."""
    return f"{math.floor(1000 * probability) / 10:g} %"
