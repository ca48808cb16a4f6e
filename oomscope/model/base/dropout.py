"""Dropout and the residual addition in one step: one output and a one-byte mask, as Megatron's fused
``bias_dropout_add`` allocates. Without dropout nothing is saved.
"""

from __future__ import annotations

from typing import Any

import torch

from oomscope.model.base.autograd import Function


class _DropoutAdd(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, residual: torch.Tensor, p: float) -> torch.Tensor:
        out, mask = torch.native_dropout(x, p, True)
        ctx.save_for_backward(mask)
        ctx.scale = 1.0 / (1.0 - p)
        return out.add_(residual)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        (mask,) = ctx.saved_tensors
        return torch.ops.aten.native_dropout_backward(grad, mask, ctx.scale), grad, None


def dropout_add(x: torch.Tensor, residual: torch.Tensor, p: float) -> torch.Tensor:
    """Return ``residual`` + dropout(``x``), both [s/σ, b, h]."""
    return _DropoutAdd.apply(x, residual, p) if p > 0 else residual + x


def dropout(x: torch.Tensor, p: float) -> torch.Tensor:
    """Drop elements of ``x``, saving a mask of one byte an element (on the CPU too, unlike ``F.dropout``)."""
    return torch.native_dropout(x, p, True)[0] if p > 0 else x
