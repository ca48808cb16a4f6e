"""Which tensors on the card are followed: those that decide enough, and are few enough, to be computed on the host."""

from __future__ import annotations

from typing import Final

import torch

from oomscope.probe.recording.values.card_bytes import hull_bytes, is_held, is_plain

MOST_ELEMENTS: Final = 1 << 22
"""Most elements of a followed tensor of integers."""
MOST_NUMBERS: Final = 1 << 18
"""Most elements of a followed tensor of floating-point numbers: counters, flags and masks."""
_MOST_LABELS: Final = 1 << 23
"""Most elements of a followed tensor of ``_LABELS``: those of eight images of 1,024 x 1,024 points."""
_LABELS: Final = frozenset((torch.int64, torch.bool))
"""Types of labels and masks. Quantized weights, which are large, have other types."""
_MOST_DRAWN: Final = 1 << 18
"""Most integers drawn at random in a followed tensor: a batch of tokens, an order, a place to cut."""
_MOST_BYTES: Final = 64 << 20
"""Most bytes from the first element of a followed tensor to its last."""


def is_followed(tensor: torch.Tensor) -> bool:
    """Whether the values of a tensor on the card decide enough, and are few enough, to be computed on the host."""
    return is_plain(tensor) and not is_left_alone(tensor) and hull_bytes(tensor) <= _MOST_BYTES


def is_few_integers(tensor: torch.Tensor) -> bool:
    """Whether a tensor that is followed has no floating-point numbers."""
    return not (tensor.is_floating_point() or tensor.is_complex()) and is_followed(tensor)


def is_few_drawn(tensor: torch.Tensor) -> bool:
    """Whether integers that are drawn at random for a tensor are followed."""
    return tensor.numel() <= _MOST_DRAWN and is_few_integers(tensor)


def is_left_alone(tensor: torch.Tensor) -> bool:
    """Whether a tensor is too large to be followed, or requires a gradient."""
    if tensor.requires_grad:
        return True
    count = tensor.numel()
    if count <= MOST_NUMBERS:
        return False
    most = _MOST_LABELS if tensor.dtype in _LABELS else MOST_ELEMENTS
    return count > most or tensor.is_floating_point() or tensor.is_complex()


def is_known(tensor: torch.Tensor) -> bool:
    """Whether the values of a tensor on the card are followed and known."""
    return is_followed(tensor) and is_held(tensor)
