"""Self-attention: QKV projection, positions, core attention, output projection.

Q, K and V are blocks of one projection, [Q | K | V] on each rank, so that cutting them apart copies nothing.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Literal

import torch
from torch import nn

from oomscope.config.schema import FlashKernels
from oomscope.model.base.device import MemoryBuffer
from oomscope.model.base.random import ModelParallelRandom
from oomscope.model.layers.context_attention import context_attention
from oomscope.model.layers.core_attention import flash_attention, unfused_attention
from oomscope.model.layers.norms import LayerNorm, RMSNorm
from oomscope.model.layers.rotary import RotaryTable, rotate, split_and_rotate
from oomscope.model.memory.offload import KEEP_ALL, ModuleOffload
from oomscope.model.memory.recompute import checkpoint
from oomscope.model.parallel.context_parallel import ContextParallel
from oomscope.model.parallel.tensor_parallel import ColumnParallelLinear, RowParallelLinear


class CoreAttention(nn.Module):
    """Flash or unfused attention with this rank's dropout.

    Args:
        backend: whether scores are kept.
        kernels: whose, where they are not.
        dropout_p: of the probabilities.
        random: the rank's random numbers.
        fork: draw from the model-parallel stream (not where the whole layer already does).
        recompute: run it again in backward instead of keeping what it saves.
        buffer: scratch memory of unfused attention (``unfused_attention``).
        cp: the ranks that share each sequence; only flash attention can (Transformer Engine's).
    """

    def __init__(
        self,
        backend: Literal["flash", "unfused"],
        *,
        kernels: FlashKernels,
        dropout_p: float,
        random: ModelParallelRandom,
        fork: bool,
        recompute: bool,
        buffer: MemoryBuffer | None,
        cp: ContextParallel,
    ) -> None:
        super().__init__()
        self._backend = backend
        self._kernels = kernels
        self._dropout_p = dropout_p
        self._random = random
        self._fork = fork
        self._recompute = recompute
        self._buffer = buffer
        self._cp = cp

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the context [s, b, a·d/t] from q [s, b, a/t, d], k and v [s, b, g/t, d].

        Attention is causal without ``mask`` too; a checkpoint keeps one that it is given, as upstream.
        """
        if self._recompute and self.training:
            return checkpoint(self._attend, self._random, q, k, v, *(() if mask is None else (mask,)))
        return self._attend(q, k, v, mask)

    def _attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        dropout_p = self._dropout_p if self.training else 0.0
        with self._random.fork() if self._fork and dropout_p > 0 else nullcontext():
            if self._cp.size > 1:
                return context_attention(q, k, v, self._cp, dropout_p=dropout_p, kernels=self._kernels)
            if self._backend == "flash":
                return flash_attention(q, k, v, dropout_p=dropout_p, kernels=self._kernels)
            return unfused_attention(q, k, v, mask, dropout_p=dropout_p, buffer=self._buffer)


class SelfAttention(nn.Module):
    """Causal self-attention of one rank's heads.

    Args:
        qkv: [s/σ, b, h] → [s, b, (a + 2g)·d/t].
        projection: [s, b, a·d/t] → [s/σ, b, h].
        core: what happens between.
        heads: query heads, key heads and value heads of this rank.
        rotary: the rotary table, None where positions are learned.
        q_norm: norm of each query head (Qwen3).
        k_norm: norm of each key head.
        offload: what goes to the host.
    """

    def __init__(
        self,
        qkv: ColumnParallelLinear,
        projection: RowParallelLinear,
        core: CoreAttention,
        *,
        heads: tuple[int, int, int],
        rotary: RotaryTable | None,
        q_norm: LayerNorm | RMSNorm | None = None,
        k_norm: LayerNorm | RMSNorm | None = None,
        offload: ModuleOffload = KEEP_ALL,
    ) -> None:
        super().__init__()
        self.qkv = qkv
        self.projection = projection
        self.core = core
        self.q_norm = q_norm
        self.k_norm = k_norm
        self._heads = heads
        self._rotary = rotary
        self._offload = offload

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Return [s/σ, b, h] from [s/σ, b, h]."""
        context = self._offload.run("core_attn", self.core, *self._query_key_value(x), mask)
        return self._offload.run("attn_proj", self.projection, context)  # type: ignore[no-any-return]

    def _query_key_value(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        qkv = self._offload.run("qkv_linear", self.qkv, x).unflatten(-1, (sum(self._heads), -1))
        if self._rotary is not None and self.q_norm is None:
            return split_and_rotate(qkv, self._heads, self._rotary)
        q, k, v = qkv.split_with_sizes(self._heads, dim=2)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if self._rotary is not None:
            q, k = rotate(q, self._rotary), rotate(k, self._rotary)
        return q, k, v
