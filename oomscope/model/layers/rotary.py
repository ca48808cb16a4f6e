"""Rotary position embedding (Su et al. 2021), rotate-half form as in Megatron-Core and GPT-NeoX.

A rotation is undone by the opposite rotation, so that backward needs no activation: only the cosines and sines. The
fused kernel reads those that all layers share; without it, each rotation makes and keeps its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from oomscope.model.base.operations import Function, paired


class RotaryTable(NamedTuple):
    """Cosines and sines, each [s, 1, 1, d/2] in fp32: 4·s·d bytes.

    As many as Megatron-Core keeps of angles, once a model chunk (rotary_pos_embedding.py, RotaryEmbedding.get_emb).
    """

    cos: torch.Tensor
    sin: torch.Tensor


def rotary_table(positions: torch.Tensor, head_dim: int, base: float) -> RotaryTable:
    """Return the table of ``positions`` [s]."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=positions.device) / head_dim
    angles = torch.outer(positions.float(), base**-exponents)[:, None, None, :]
    return RotaryTable(angles.cos(), angles.sin())


def rotate_into(out: torch.Tensor, x: torch.Tensor, table: RotaryTable, *, sign: int = 1) -> None:
    """Write ``x`` […, d] turned by ``sign`` times its angle into ``out``, without temporaries."""
    x_real, x_imaginary = x.chunk(2, dim=-1)
    out_real, out_imaginary = out.chunk(2, dim=-1)
    torch.mul(x_real, table.cos, out=out_real).addcmul_(x_imaginary, table.sin, value=-sign)
    torch.mul(x_imaginary, table.cos, out=out_imaginary).addcmul_(x_real, table.sin, value=sign)


class _OwnTable(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, table: RotaryTable) -> torch.Tensor:
        ctx.save_for_backward(*(torch.cat((half, half), dim=-1).to(x.dtype) for half in table))
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        _ = ctx.saved_tensors  # fetched, where they were offloaded
        return grad, None


def with_own_table(x: torch.Tensor, table: RotaryTable) -> torch.Tensor:
    """Return ``x``, and keep for backward the cosines and sines that its rotation without a fused kernel makes.

    They are as wide as what is turned (Megatron-Core rope_utils.py::_apply_rotary_pos_emb_bshd).
    """
    return _OwnTable.apply(x, table)  # type: ignore[no-any-return]


def rotate(x: torch.Tensor, table: RotaryTable, *, fused: bool) -> torch.Tensor:
    """Return ``x`` [s, b, heads, d] turned by its positions."""

    def turned(x: torch.Tensor, sign: int) -> torch.Tensor:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        rotate_into(out, x, table, sign=sign)
        return out

    x = x if fused else with_own_table(x, table)
    return paired(x, lambda x: turned(x, 1), lambda grad: turned(grad, -1))
