"""The numbers of a quantised matrix, where a device has any: largest values of blocks, scales, and the way back.

Scales multiply what was quantised to give the number back. Those of ``mxfp8`` are powers of two, kept as exponents.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn import functional

_EXPONENT_BIAS = 127
_SMALLEST = 2.0**-100


def largest(x: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """Return the largest absolute value of each block of ``x`` [r, c], in fp32."""
    rows, columns = x.shape
    padded = functional.pad(x.abs().float(), (0, -columns % block[1], 0, -rows % block[0]))
    return padded.view(padded.shape[0] // block[0], block[0], -1, block[1]).amax((1, 3))


def scales_of(
    x: torch.Tensor, block: tuple[int, int], dtype: torch.dtype, *, powers: bool, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """Return the scales [blocks down, blocks across] with which ``x`` [r, c] fits ``dtype``, in fp32.

    Args:
        x: the matrix.
        block: rows and columns that share a scale.
        dtype: of fp8.
        powers: round up to powers of two.
        group: ranks whose matrices share their scales.
    """
    peak = largest(x, block)
    if group is not None:
        dist.all_reduce(peak, op=dist.ReduceOp.MAX, group=group)
    scales = (peak / torch.finfo(dtype).max).clamp_min(_SMALLEST)
    return torch.exp2(torch.log2(scales).ceil()) if powers else scales


def quantised(x: torch.Tensor, scales: torch.Tensor, block: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    """Return ``x`` [r, c] over its ``scales`` in ``dtype``, as bytes."""
    limit = torch.finfo(dtype).max
    return (x.float() / _spread(scales, block, x.shape)).clamp(-limit, limit).to(dtype).view(torch.uint8)


def dequantised(data: torch.Tensor, scales: torch.Tensor, block: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    """Return the matrix [r, c] of bytes of ``dtype`` times its ``scales``, in fp32."""
    return data.view(dtype).float() * _spread(scales, block, data.shape)


def store_scales(place: torch.Tensor, scales: torch.Tensor) -> None:
    """Write ``scales`` to the beginning of ``place``; the rest is padding."""
    flat = scales.flatten()
    if place.dtype == torch.uint8:
        flat = torch.log2(flat).round().add(_EXPONENT_BIAS)
    place.data.view(-1)[: flat.numel()].copy_(flat)


def load_scales(place: torch.Tensor, shape: tuple[int, int], block: tuple[int, int]) -> torch.Tensor:
    """Return the scales [blocks down, blocks across] of a matrix of ``shape``, in fp32."""
    grid = -(-shape[0] // block[0]), -(-shape[1] // block[1])
    flat = place.view(-1)[: grid[0] * grid[1]].view(grid)
    return torch.exp2(flat.float() - _EXPONENT_BIAS) if place.dtype == torch.uint8 else flat


def _spread(scales: torch.Tensor, block: tuple[int, int], shape: torch.Size) -> torch.Tensor:
    spread = scales.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    return spread[: shape[0], : shape[1]]
