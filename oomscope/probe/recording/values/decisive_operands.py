"""Results that one operand decides: whatever ``x`` is, ``True | x`` is true and ``False & x`` is false.

The loop of ``generate()`` ends by it: its longest length is known, though none of its tokens is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch

_DECISIVE: Final = {
    **dict.fromkeys(("logical_or", "logical_or_", "bitwise_or", "bitwise_or_"), True),
    **dict.fromkeys(("logical_and", "logical_and_", "bitwise_and", "bitwise_and_"), False),
}
"""Value of an operand that decides the result, by operation of ``aten``."""


def is_decisive(name: str) -> bool:
    """Return whether one operand may decide the result of an operation."""
    return name in _DECISIVE


def decided_by_one(name: str, operands: Iterable[torch.Tensor], result: torch.Tensor) -> torch.Tensor | None:
    """Return on the host what the result of a function must be by one of its known operands; None where none decides.

    Args:
        name: of the function.
        operands: those that are known, on the host; one decides that has the decisive value everywhere.
        result: on the card: its shape and type.
    """
    decisive = _DECISIVE.get(name)
    if decisive is None or (decisive and result.dtype is not torch.bool):  # of integers, 1 | x is not 1
        return None
    for operand in operands:
        if bool(operand.all() if decisive else not operand.any()):
            return torch.full(result.shape, decisive, dtype=result.dtype, device="cpu")
    return None
