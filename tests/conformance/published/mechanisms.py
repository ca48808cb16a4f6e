"""Why numbers differ where they do: a mechanism is named where it gives the very difference, or its sign and bound."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from .comparing import CUBLASLT_WORKSPACE, Outcome, Verdict
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
    """Float32 weights of V x D for the script's V, 1024 to 131072, and their gradients.

    Of the speed of D = 4096, forward and full: three sets. Of the memory of D = 768, which is measured first: two more.
    """
    rows = sum(2**power for power in range(10, 18))
    larger, smaller = rows * 4096 * 4, rows * 768 * 4
    return _of_liger(outcome, "embedding") is not None and _less(outcome) in (3 * larger, 3 * larger + 2 * smaller)


def _compiled_losses(outcome: Outcome) -> bool:
    """Of the script's first size, 2 sequences: bf16 weights twice, inputs and gradients five times, targets thrice."""
    case = _of_liger(outcome, "fused_linear_orpo_loss", "fused_linear_cpo_loss", "fused_linear_simpo_loss")
    if case is None:
        return False
    config = json.loads(case.config)
    tokens, hidden = 2 * config["T"], config["H"]
    left = 2 * config["V"] * hidden * 2 + 5 * tokens * hidden * 2 + 3 * tokens * 8
    return abs(_less(outcome) - left) < outcome.row.resolution


def _part_of_a_workspace(outcome: Outcome) -> bool:
    """More than was recorded, and less than 1 MiB more: the largest moment without the workspace is another one."""
    case = _of_liger(outcome, "fused_neighborhood_attention")
    return case is not None and 0 < (outcome.difference or 0) < CUBLASLT_WORKSPACE


def _convolution(outcome: Outcome) -> bool:
    return (
        _of_liger(outcome, "multi_token_attention", "sparse_multi_token_attention") is not None and _less(outcome) > 0
    )


_KEPT = "kept by the cache of torch.compile of that time, from cases before it in the same process"

MECHANISMS: tuple[tuple[str, Callable[[Outcome], bool]], ...] = (
    (
        f"{_KEPT}: modules of the torch_compile provider, with their gradients",
        _compiled_embeddings,
    ),
    (
        f"{_KEPT}: the tensors of the first size of the loss that the liger provider compiles",
        _compiled_losses,
    ),
    ("a part of cuBLASLt's workspace of 1 MiB, which torch 2.11 takes", _part_of_a_workspace),
    ("cuDNN's workspace of a convolution, which no virtual card knows", _convolution),
)
