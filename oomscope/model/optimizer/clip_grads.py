"""Clipping by the global norm: every rank's share of the gradients is counted once, and scaled in place.

Megatron-Core (``optimizer/clip_grads.py``) takes the norm with one multi-tensor kernel that needs a few hundred
floats. Here each tensor's norm is a reduction to one number, which needs as little; neither ever makes a tensor of a
gradient's size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

EPSILON = 1e-6
"""Added to the norm before dividing, as in ``torch.nn.utils.clip_grad_norm_`` and Megatron-Core."""


def squared_norm(
    grads: Sequence[torch.Tensor], groups: Sequence[dist.ProcessGroup | None], device: torch.device
) -> torch.Tensor:
    """Return the squared L2 norm of ``grads`` over this rank and all ranks of ``groups``, a 0-d fp32 tensor.

    Args:
        grads: what this rank counts; no element may be counted on two ranks.
        groups: axes over which the gradients are spread; None stands for an axis of one rank.
        device: where the norm is made, also if this rank counts nothing.
    """
    norms = [torch.linalg.vector_norm(grad, dtype=torch.float32) for grad in grads]
    total = torch.stack(norms).square_().sum() if norms else torch.zeros((), dtype=torch.float32, device=device)
    for group in groups:
        if group is not None:
            dist.all_reduce(total, group=group)
    return total


def clip(grads: Sequence[torch.Tensor], norm: torch.Tensor, max_norm: float) -> None:
    """Scale ``grads`` in place so that a global norm of ``norm`` becomes at most ``max_norm``.

    The factor stays on the device and is applied in any case (as 1 where nothing is to be clipped): no value is
    read back.
    """
    if grads:
        torch._foreach_mul_(list(grads), (max_norm / (norm + EPSILON)).clamp_(max=1.0))
