"""Which tensors on the card are followed: those that decide enough, and are few enough, to be computed on the host."""

from __future__ import annotations

from typing import Final

import torch

from oomscope.probe.recording.values.card_bytes import hull_bytes, is_held, is_plain

MOST_ELEMENTS: Final = 1 << 22
"""Of a tensor that is followed."""
_MOST_NUMBERS: Final = 1 << 18
"""Of a followed tensor of floating-point numbers: counters, flags and masks."""
_MOST_BYTES: Final = 32 << 20
"""From the first element of a followed tensor to its last."""


def is_followed(tensor: torch.Tensor) -> bool:
    """Whether the values of a tensor on the card decide enough, and are few enough, to be computed on the host."""
    return is_plain(tensor) and not is_left_alone(tensor) and hull_bytes(tensor) <= _MOST_BYTES


def is_few_integers(tensor: torch.Tensor) -> bool:
    """Whether a tensor that is followed has no floating-point numbers."""
    return not (tensor.is_floating_point() or tensor.is_complex()) and is_followed(tensor)


def is_left_alone(tensor: torch.Tensor) -> bool:
    """Whether a tensor is too large to be followed, or requires a gradient."""
    if tensor.requires_grad:
        return True
    count = tensor.numel()
    return count > _MOST_NUMBERS and (count > MOST_ELEMENTS or tensor.is_floating_point() or tensor.is_complex())


def is_known(tensor: torch.Tensor) -> bool:
    """Whether the values of a tensor on the card are followed and known."""
    return is_followed(tensor) and is_held(tensor)
