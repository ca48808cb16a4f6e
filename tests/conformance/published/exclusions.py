"""Which rows are not run, and why: rules that were written down before the first full run."""

from __future__ import annotations

import re
from collections.abc import Callable

from . import liger_rows, peft_rows
from .rows import Row

Rule = tuple[str, Callable[[Row], bool]]

RULES: tuple[Rule, ...] = (
    (
        "sizes depend on values: each expert gets the tokens that the router's random logits choose",
        lambda row: row.repository == liger_rows.REPOSITORY and row.subject.startswith("fused_moe"),
    ),
    (
        "reserved bytes of a whole run depend on the lengths of the dataset's texts, which the row does not hold",
        lambda row: row.repository == peft_rows.REPOSITORY and "reserved" in row.metric,
    ),
    (
        "no LoRA of rank 32 was published for this model, to which the difference is taken",
        lambda row: row.repository == peft_rows.REPOSITORY and not re.search("Llama-3.2-3B", row.subject),
    ),
    (
        "a workspace of cuDNN: no virtual card knows what a closed library asks for",
        lambda row: row.metric == "operator-local workspace",
    ),
)


def reason_to_exclude(row: Row) -> str | None:
    """Return why a row is not run; None if it is."""
    return next((reason for reason, holds in RULES if holds(row)), None)
