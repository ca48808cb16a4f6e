"""Why numbers differ where they do: a mechanism is named where it gives the very difference, or its sign and bound."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from .comparing import Outcome, Verdict
from .liger_rows import REPOSITORY, LigerCase, case_of

MISSES = (Verdict.OFF, Verdict.NEAR)
NOT_LISTED = "the script at the commit does not have this configuration: another script was run, which is not public"


def explained(outcome: Outcome, *, listed: bool = True) -> Outcome:
    """Return the outcome with the mechanism behind its difference, where one is known.

    Args:
        outcome: of a row.
        listed: whether the program that was found for the row has its configuration.
    """
    values = _values(outcome)
    if values:
        return replace(outcome, reason=values)
    if not listed and outcome.verdict in (*MISSES, Verdict.FAILED):
        return replace(outcome, reason=NOT_LISTED)
    if outcome.verdict not in MISSES:
        return outcome
    reason = next((reason for reason, holds in MECHANISMS if holds(outcome)), "")
    return replace(outcome, reason=reason)


def _values(outcome: Outcome) -> str:
    """Return the mechanism of a failure, with what the program said."""
    if outcome.verdict is Verdict.FAILED and _of_liger(outcome, "kto_loss"):
        return f"random labels pick rows, and where none is picked the loss has no graph ({outcome.reason})"
    return ""


def _of_liger(outcome: Outcome, *kernels: str) -> LigerCase | None:
    """Return the case if it is Liger's and of one of some kernels."""
    if outcome.row.repository != REPOSITORY:
        return None
    case = case_of(outcome.row)
    return case if case.kernel in kernels else None


def _less(outcome: Outcome) -> int:
    return -(outcome.difference or 0)


def _compiled_embeddings(outcome: Outcome) -> bool:
    """Modules that torch.compile of that time kept in cycles until Python's collector ran: whole rows of weights.

    When it runs follows how many objects Python made before: by how often each case was timed, and by where kernels are
    compiled (docs/accuracy.md).
    """
    case = _of_liger(outcome, "embedding")
    return (
        case is not None
        and outcome.difference != 0
        and (outcome.difference or 0) % (json.loads(case.config)["D"] * 4) == 0
    )


def _convolution(outcome: Outcome) -> bool:
    return (
        _of_liger(outcome, "multi_token_attention", "sparse_multi_token_attention") is not None and _less(outcome) > 0
    )


MECHANISMS: tuple[tuple[str, Callable[[Outcome], bool]], ...] = (
    ("weights of modules that torch.compile kept until Python's collector ran", _compiled_embeddings),
    ("cuDNN's workspace of a convolution, which no virtual card knows", _convolution),
)
