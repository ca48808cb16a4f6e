"""Why numbers differ where they do: a mechanism is named only where it gives the very difference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .comparing import Outcome, Verdict

MISSES = (Verdict.OFF, Verdict.NEAR)
NOT_LISTED = "the script at the commit does not have this configuration: another script was run, which is not public"


def explained(outcome: Outcome, *, listed: bool = True) -> Outcome:
    """Return the outcome with the mechanism behind its difference, where one is known.

    Args:
        outcome: of a row.
        listed: whether the program that was found for the row has its configuration.
    """
    if not listed and outcome.verdict in (*MISSES, Verdict.FAILED):
        return replace(outcome, reason=NOT_LISTED)
    if outcome.verdict not in MISSES:
        return outcome
    reason = next((reason for reason, holds in MECHANISMS if holds(outcome)), "")
    return replace(outcome, reason=reason)


def _compiled_embeddings(outcome: Outcome) -> bool:
    """Weights of V x D float32 for V of 1024 to 131072: 3 sets with D = 4096, and 2 more with D = 768 later."""
    if not outcome.row.subject.startswith("embedding"):
        return False
    vocabularies = sum(2**power for power in range(10, 18))
    leaked = vocabularies * 4 * 4096 * 3
    return -(outcome.difference or 0) in (leaked, leaked + vocabularies * 4 * 768 * 2)


MECHANISMS: tuple[tuple[str, Callable[[Outcome], bool]], ...] = (
    (
        "the torch_compile provider, which runs in the same process, keeps the weights of every vocabulary alive",
        _compiled_embeddings,
    ),
)
