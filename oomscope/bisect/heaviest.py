"""Which step of a range weighs most: one that leads where the range leads, not one that takes another back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Step = TypeVar("Step")


def heaviest(steps: Sequence[Step], weight: Callable[[Step], int], *, is_culprit_known: bool) -> Step | None:
    """Return the step that weighs most in the direction of the range; None where nothing changed.

    Where something is at fault the direction is up: what took bytes away is not what filled the card. Elsewhere it is
    that of the sum of all steps. Steps that cancel each other have no direction: the one that changed most is
    returned, of equal ones the first, since the later ones took it back.

    Args:
        steps: all steps of a range, from its good end to its bad end.
        weight: the bytes of a step, with their sign.
        is_culprit_known: whether something in the range is at fault.
    """
    weights = [weight(step) for step in steps]
    total = 1 if is_culprit_known else sum(weights)
    along = [abs(each) if total == 0 else each if total > 0 else -each for each in weights]
    most = max(along, default=0)
    return steps[along.index(most)] if most > 0 else None
