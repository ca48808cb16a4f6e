"""Counts that operations read from the card to size their results, such as how many elements ``nonzero`` found."""

from __future__ import annotations

import struct
from typing import Any, Final

import torch

from oomscope.probe.recording.values.card_bytes import hold, is_held, is_plain, unhold
from oomscope.probe.recording.values.operations import OnHost

COUNTED: Final = frozenset(("nonzero", "nms", "unique_consecutive", "unique_dim", "_unique2"))
"""Operations that read from the card how many elements they return."""
_LARGER: Final = 5
"""The card's answer for a single unknown byte under the rule of larger numbers (``csrc/memory/copies.cpp``)."""


def counts(count: int) -> list[bytes]:
    """Return a count in the types in which operations read it."""
    return [struct.pack("i", count), struct.pack("q", count)]


def most_counted(name: str, args: tuple[Any, ...]) -> int:
    """Return the most elements that an operation of these arguments can find."""
    dim = 0 if name == "nms" else counted_dim(name, args)
    return int(args[0].numel() if dim is None else args[0].shape[dim])


def counted_dim(name: str, args: tuple[Any, ...]) -> int | None:
    """Return along which dimension an operation counts; None where it counts elements."""
    place = {"unique_dim": 1, "unique_consecutive": 3}.get(name, len(args))
    return args[place] if place < len(args) else None


def unknown_counts(tensor: torch.Tensor, most: int) -> list[bytes]:
    """Return the count that an operation finds in an unknown tensor: by the card's rule none, one, ``most`` or half.

    The card's own answer would be more than ``most``. One byte of the tensor is read, so that the card counts a read of
    an unknown value.
    """
    if not most or not is_plain(tensor) or torch.cuda.is_current_stream_capturing():
        return []
    with OnHost():
        first = tensor.as_strided((1,), (1,)).view(torch.uint8)[:1]
        if was_held := is_held(first):  # a part of it is known, or it is large
            unhold(first)
        answer = int(first.cpu())
        if was_held:
            hold(first)
    return counts({0: 0, 1: 1, _LARGER: most}.get(answer, (most + 1) // 2))
