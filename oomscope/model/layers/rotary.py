"""Rotary position embedding (Su et al. 2021), rotate-half form as in Megatron-Core and GPT-NeoX.

A rotation is undone by the opposite rotation, so that backward needs no activation: only the cosines and sines,
which all layers share.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from oomscope.model.base.operations import Function, paired


class RotaryTable(NamedTuple):
    """Cosines and sines, each [s, 1, 1, d/2]."""

    cos: torch.Tensor
    sin: torch.Tensor


def rotary_table(positions: torch.Tensor, head_dim: int, base: float, *, dtype: torch.dtype) -> RotaryTable:
    """Return the table of ``positions`` [s]."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=positions.device) / head_dim
    angles = torch.outer(positions.float(), base**-exponents)[:, None, None, :]
    return RotaryTable(angles.cos().to(dtype), angles.sin().to(dtype))


def rotate_into(out: torch.Tensor, x: torch.Tensor, table: RotaryTable, *, sign: int = 1) -> None:
    """Write ``x`` […, d] turned by ``sign`` times its angle into ``out``, without temporaries."""
    x_real, x_imaginary = x.chunk(2, dim=-1)
    out_real, out_imaginary = out.chunk(2, dim=-1)
    torch.mul(x_real, table.cos, out=out_real).addcmul_(x_imaginary, table.sin, value=-sign)
    torch.mul(x_imaginary, table.cos, out=out_imaginary).addcmul_(x_real, table.sin, value=sign)


class _SplitAndRotate(Function):
    """Cuts the QKV projection in three tensors of their own, so that the projection itself is freed.

    Transformer Engine's ``fused_qkv_rope`` allocates the same.
    """

    @staticmethod
    def forward(
        ctx: Any, qkv: torch.Tensor, heads: tuple[int, int, int], table: RotaryTable
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        ctx.heads = heads
        ctx.table = table
        parts = qkv.split_with_sizes(heads, dim=2)
        q, k, v = (torch.empty(part.shape, dtype=part.dtype, device=part.device) for part in parts)
        rotate_into(q, parts[0], table)
        rotate_into(k, parts[1], table)
        v.copy_(parts[2])
        return q, k, v

    @staticmethod
    def backward(
        ctx: Any, grad_q: torch.Tensor, grad_k: torch.Tensor, grad_v: torch.Tensor
    ) -> tuple[torch.Tensor, None, None]:
        s, b, _, d = grad_q.shape
        grad = torch.empty((s, b, sum(ctx.heads), d), dtype=grad_q.dtype, device=grad_q.device)
        parts = grad.split_with_sizes(ctx.heads, dim=2)
        rotate_into(parts[0], grad_q, ctx.table, sign=-1)
        rotate_into(parts[1], grad_k, ctx.table, sign=-1)
        parts[2].copy_(grad_v)
        return grad, None, None


def rotate(x: torch.Tensor, table: RotaryTable) -> torch.Tensor:
    """Return ``x`` [s, b, heads, d] turned by its positions."""

    def turned(x: torch.Tensor, sign: int) -> torch.Tensor:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        rotate_into(out, x, table, sign=sign)
        return out

    return paired(x, lambda x: turned(x, 1), lambda grad: turned(grad, -1))


def split_and_rotate(
    qkv: torch.Tensor, heads: tuple[int, int, int], table: RotaryTable
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return q, k (turned) and v, each [s, b, heads, d], from ``qkv`` [s, b, sum(heads), d]."""
    return _SplitAndRotate.apply(qkv, heads, table)  # type: ignore[no-any-return]
