"""Rotary position embedding (Su et al. 2021), rotate-half form as in Megatron-Core and GPT-NeoX.

A rotation is undone by the opposite rotation, so that backward needs no activation: only the cosines and sines,
which all layers share.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from oomscope.model.base.operations import paired


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


def rotate(x: torch.Tensor, table: RotaryTable) -> torch.Tensor:
    """Return ``x`` [s, b, heads, d] turned by its positions."""

    def turned(x: torch.Tensor, sign: int) -> torch.Tensor:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        rotate_into(out, x, table, sign=sign)
        return out

    return paired(x, lambda x: turned(x, 1), lambda grad: turned(grad, -1))
