"""What CUDA kernels allocate inside: one table, a row an operation, each with its formula, condition and source.

Meta kernels show none of these, so without the table the simulated device would miss them. Temporaries live for
the duration of the operation; cuBLAS workspaces live on, one for each thread and stream that multiplies matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from oomscope.probe.cublas import workspace_bytes
from oomscope.snapshot.trace import Category
from oomscope.units import KiB, MiB

aten = torch.ops.aten
Arguments = Sequence[Any]


@dataclass(frozen=True, kw_only=True)
class Card:
    """What a formula may depend on."""

    compute_capability: tuple[int, int]
    multiprocessors: int = 132
    cublas_workspace_config: str | None = None


@dataclass(frozen=True, kw_only=True)
class Temporary:
    """One row: what the kernels of ``ops`` allocate beyond their outputs."""

    name: str
    ops: tuple[Any, ...]
    condition: str
    """When it is allocated, in words."""
    formula: str
    """Bytes, in words."""
    source: str
    sizes: Callable[[Arguments, Card], tuple[int, ...]]
    """Bytes of each block, from the operation's arguments; empty where the condition does not hold."""
    category: Category = Category.TEMPORARY


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def flash_backward_bytes(args: Arguments, card: Card) -> tuple[int, ...]:
    """Return softmax_d, dq_accum and, for GQA, the expanded dk and dv of FlashAttention-2's backward.

    ``args``: grad_out, query ``[b, a, s, d]``, key ``[b, g, s_k, d]``, …
    """
    query, key = args[1], args[2]
    batch, heads, seq_q, width = query.shape
    groups, seq_k = key.shape[1], key.shape[2]
    seq_rounded = _round_up(seq_q, 128)
    width_rounded = _round_up(width, 32 if width <= 128 else 64)
    softmax_d = batch * heads * seq_rounded * 4
    dq_accum = batch * seq_rounded * heads * width_rounded * 4
    expanded = batch * seq_k * heads * width * query.element_size()
    return (softmax_d, dq_accum, *((expanded, expanded) if groups != heads else ()))


def layer_norm_backward_bytes(args: Arguments, card: Card) -> tuple[int, ...]:
    """Return the partial sums of dgamma and dbeta, one row for every 32 rows of the input.

    ``args``: grad_out, input ``[m, n]`` (flattened), normalized_shape, mean, rstd, weight, bias, output_mask.
    """
    source, shape, weight, bias = args[1], args[2], args[5], args[6]
    width = math.prod(shape)
    rows = source.numel() // max(width, 1)
    if rows <= 64 * 1024 or width // 32 >= card.multiprocessors // 2:
        return ()
    partials = min(32 * 1024 // -(-width // 32), -(-rows // 32))
    return tuple(partials * width * tensor.element_size() for tensor in (weight, bias) if tensor is not None)


def embedding_backward_bytes(args: Arguments, card: Card) -> tuple[int, ...]:
    """Return the sorted indices, the bounds of their segments, and the fp32 partial sums of the segments.

    ``args``: grad_out ``[…, h]``, indices ``[…]``, num_weights, …
    """
    grad, indices, num_weights = args[:3]
    count, width, index_size = indices.numel(), grad.shape[-1], indices.element_size()
    if count <= 3072:
        return ()
    segments = min(count, num_weights)
    partials = count // 10 + segments
    accumulator = 8 if grad.dtype is torch.float64 else 4
    return (
        count * index_size,
        count * index_size,
        count * index_size,
        segments * index_size,
        segments * index_size,
        partials * index_size,
        partials * width * accumulator,
    )


TEMPORARIES: Final = (
    Temporary(
        name="flash_backward",
        ops=(aten._scaled_dot_product_flash_attention_backward.default, aten._flash_attention_backward.default),
        condition="always; the expanded dk and dv only when query and key have different head counts",
        formula="softmax_d 4*b*a*s' + dq_accum 4*b*s'*a*d' (+ 2 * b*s_k*a*d*itemsize), s' = s rounded up to 128, "
        "d' = d rounded up to 32 (64 above 128)",
        source="PyTorch aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_bwd",
        sizes=flash_backward_bytes,
    ),
    Temporary(
        name="layer_norm_backward",
        ops=(aten.native_layer_norm_backward.default,),
        condition="more than 65536 rows, and columns / 32 below half the multiprocessors",
        formula="2 * min(32768 / ceil(n / 32), ceil(m / 32)) * n * itemsize",
        source="PyTorch aten/src/ATen/native/cuda/layer_norm_kernel.cu, LaunchGammaBetaBackwardCUDAKernel",
        sizes=layer_norm_backward_bytes,
    ),
    Temporary(
        name="embedding_backward",
        ops=(aten.embedding_dense_backward.default,),
        condition="more than 3072 indices",
        formula="p * h * 4 + index_size * (3 * numel + 2 * u + p), u = min(numel, rows), p = numel // 10 + u",
        source="PyTorch aten/src/ATen/native/cuda/Embedding.cu, embedding_dense_backward_cuda, and "
        "EmbeddingBackwardKernel.cu, embedding_backward_cuda_kernel (its two-pass path)",
        sizes=embedding_backward_bytes,
    ),
)
"""Every known temporary. A row is added when a measurement on a GPU shows an allocation that is not here."""

BY_OP: Final = {op: row for row in TEMPORARIES for op in row.ops}

GEMMS: Final = frozenset(
    {
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        aten.baddbmm.default,
        aten.mv.default,
        aten.addmv.default,
        aten.dot.default,
        aten._grouped_mm.default,
        aten.addmm_.default,
        aten.baddbmm_.default,
        aten.mm.out,
        aten.addmm.out,
        aten.bmm.out,
    }
)
"""Operations that take a cuBLAS handle."""


def cublas_workspace_bytes(card: Card) -> int:
    """Return the bytes of one cuBLAS workspace: for each (thread, stream) that multiplies matrices.

    Source: PyTorch aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize: 32 MiB on compute
    capability 9 and later, else ``:4096:2:16:8``; ``CUBLAS_WORKSPACE_CONFIG`` is a sum of ``:KiB:count``.

    Raises:
        ConfigError: the configuration string has no ``:KiB:count`` in it.
    """
    if card.cublas_workspace_config is not None:
        return workspace_bytes(card.cublas_workspace_config)
    return 32 * MiB if card.compute_capability >= (9, 0) else (4096 * 2 + 16 * 8) * KiB
