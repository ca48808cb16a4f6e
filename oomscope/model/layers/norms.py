"""LayerNorm and RMSNorm that keep their input and the fp32 statistics of each row, and nothing else.

Both call the fused kernels that CUDA has (``aten::native_layer_norm``, ``aten::_fused_rms_norm``); written as own
functions they save the same tensors on every device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from oomscope.model.base.operations import Function
from oomscope.model.layers.rank_context import RankContext


class _LayerNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
        out, mean, rstd = torch.native_layer_norm(x, weight.shape, weight, bias, eps)
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        x, weight, bias, mean, rstd = ctx.saved_tensors
        grads = torch.ops.aten.native_layer_norm_backward(
            grad.contiguous(), x, weight.shape, mean, rstd, weight, bias, [True, True, True]
        )
        return grads[0], grads[1], grads[2], None


class _RMSNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        out, rstd = torch.ops.aten._fused_rms_norm(x, weight.shape, weight, eps)
        ctx.save_for_backward(x, weight, rstd)
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, weight, rstd = ctx.saved_tensors
        if x.device.type == "cpu":  # torch has the kernel for accelerators only
            return *_rms_norm_backward(grad, x, weight, rstd), None
        grad_x, grad_weight = torch.ops.aten._fused_rms_norm_backward(
            grad.contiguous(), x, weight.shape, rstd, weight, [True, True]
        )
        return grad_x, grad_weight, None


def _rms_norm_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Differentiate y = x · rstd(x) · weight with respect to x and weight, in fp32."""
    normed = x.float() * rstd
    grad_normed = grad.float() * weight.float()
    mean = (grad_normed * normed).mean(-1, keepdim=True)
    grad_x = (grad_normed - normed * mean) * rstd
    grad_weight = (grad.float() * normed).flatten(0, -2).sum(0)
    return grad_x.to(x.dtype), grad_weight.to(weight.dtype)


class Norm(nn.Module):
    """LayerNorm over the last dimension, or RMSNorm without a bias.

    Saves its input, and of each row the mean and the reciprocal deviation, 8 bytes, or the latter alone.
    """

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None, eps: float) -> None:
        super().__init__()
        self.weight = weight
        self.bias = bias
        self._eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x`` […, h] normalised."""
        if self.bias is None:
            return _RMSNorm.apply(x, self.weight, self._eps)  # type: ignore[no-any-return]
        return _LayerNorm.apply(x, self.weight, self.bias, self._eps)  # type: ignore[no-any-return]


def make_norm(rank: RankContext, width: int, *, of_heads: bool = False) -> Norm:
    """Return the configured norm of rows of ``width``.

    With ``of_heads`` it is inside the tensor-parallel region, where each rank sees its own heads only.
    """
    model = rank.config.model
    weight = rank.constant(1.0, width, sequence_parallel=True)
    has_bias = model.normalization == "LayerNorm"
    bias = rank.constant(0.0, width, sequence_parallel=True) if has_bias else None
    norm = Norm(weight, bias, model.layernorm_epsilon)
    if of_heads:
        for parameter in norm.parameters():
            parameter.sequence_parallel = rank.tp.size > 1  # type: ignore[attr-defined]
    return norm
