"""Which devices compute numbers, and which know sizes only."""

from __future__ import annotations

import torch

from oomscope import virtual


def computes(device: torch.device) -> bool:
    """Whether tensors on ``device`` have values: not on ``meta`` and on a virtual card.

    Where they have none, writing them into memory that is there already may be left out: no memory moves.
    """
    return device.type == "cpu" or (device.type == "cuda" and not virtual.is_loaded())
