"""Which devices compute numbers, and which know sizes only."""

from __future__ import annotations

import torch


def computes(device: torch.device) -> bool:
    """Whether tensors on ``device`` have values: not on ``meta``, nor on the simulated device.

    Where they have none, writing them into memory that is there already may be left out: no memory moves.
    """
    return device.type in ("cpu", "cuda")
