"""Self-attention: QKV projection, positions, core attention, output projection.

Q, K and V are blocks of one projection, [Q | K | V] on each rank, so that cutting them apart copies nothing.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import nn

from oomscope.model.fp8.recipe import Fp8Recipe
from oomscope.model.layers.context_attention import context_attention
from oomscope.model.layers.core_attention import flash_attention, unfused_attention
from oomscope.model.layers.linear import column_linear, row_linear
from oomscope.model.layers.norms import make_norm
from oomscope.model.layers.rank_context import RankContext
from oomscope.model.layers.rotary import rotate
from oomscope.model.memory.recompute import checkpoint


class CoreAttention(nn.Module):
    """Flash or unfused attention with this rank's dropout; only flash attention can share sequences between ranks."""

    def __init__(self, rank: RankContext) -> None:
        super().__init__()
        self._rank = rank
        self._dropout_p = rank.config.model.attention_dropout
        self._recompute = "core_attn" in rank.config.recompute_modules
        self._is_local = rank.config.model.transformer_impl == "local"

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the context [s, b, a·d/t] from q [s, b, a/t, d], k and v [s, b, g/t, d].

        Attention is causal without ``mask`` too; a checkpoint keeps one that it is given, as upstream.
        """
        if self._recompute and self.training:
            return checkpoint(self._attend, self._rank.random, q, k, v, *(() if mask is None else (mask,)))
        return self._attend(q, k, v, mask)

    def _attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        rank, config = self._rank, self._rank.config
        if not self._is_local and (rank.cp.size > 1 or q.is_contiguous()):
            # as Transformer Engine's get_qkv_layout, which without context parallelism takes views of one projection
            q, k, v = (x.contiguous() for x in (q, k, v))
        dropout_p = self._dropout_p if self.training else 0.0
        # under sequence parallelism the whole layer draws from the model-parallel stream already
        fork = dropout_p > 0 and not rank.tp.sequence_parallel
        with rank.random.fork() if fork else nullcontext():
            if rank.cp.size > 1:
                return context_attention(q, k, v, rank.cp, dropout_p=dropout_p, kernels=config.flash_kernels)
            if config.attention_backend == "flash":
                return flash_attention(q, k, v, dropout_p=dropout_p, kernels=config.flash_kernels)
            return unfused_attention(q, k, v, mask, dropout_p=dropout_p, buffer=rank.tp.buffer, softmax=config.softmax)


class SelfAttention(nn.Module):
    """Causal self-attention of one rank's heads."""

    def __init__(self, rank: RankContext, name: str, fp8: Fp8Recipe | None) -> None:
        super().__init__()
        config, model, d = rank.config, rank.config.model, rank.config.head_dim
        heads = (model.num_attention_heads, config.query_groups, config.query_groups)
        bias = model.add_bias_linear or model.add_qkv_bias
        norms = [make_norm(rank, d, of_heads=True) if model.qk_layernorm else None for _ in range(2)]
        self.qkv = column_linear(rank, f"{name}.qkv", tuple(count * d for count in heads), bias=bias, fp8=fp8)
        self._heads = (heads[0] // rank.tp.size, heads[1] // rank.tp.size, heads[2] // rank.tp.size)
        self.qkv.weight.stacked_rows = tuple(count * d for count in self._heads)  # type: ignore[attr-defined]
        self.projection = row_linear(rank, f"{name}.projection", heads[0] * d, fp8, keeps_input=True)
        self.core = CoreAttention(rank)
        self.q_norm, self.k_norm = norms
        self._rotary = rank.rotary
        self._fused_rope = model.apply_rope_fusion
        self._is_local = model.transformer_impl == "local"
        self._offload = rank.offload

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Return [s/σ, b, h] from [s/σ, b, h]."""
        context = self._offload.run("core_attn", self.core, *self._query_key_value(x), mask)
        return self._offload.run("attn_proj", self.projection, context)  # type: ignore[no-any-return]

    def _query_key_value(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        qkv = self._offload.run("qkv_linear", self.qkv, x).unflatten(-1, (sum(self._heads), -1))
        q, k, v = qkv.split_with_sizes(self._heads, dim=2)  # a checkpoint that saves V keeps the whole projection
        if 1 < self._heads[1] < self._heads[0]:
            q = q.contiguous()  # a copy upstream, where the heads of each of several groups lie side by side
        if self.q_norm is not None and self.k_norm is not None:
            if not self._is_local:
                q, k = q.contiguous(), k.contiguous()  # Transformer Engine's norms copy a view: ops/basic/rmsnorm.py
            q, k = self.q_norm(q), self.k_norm(k)
        if self._rotary is not None:
            q, k = (rotate(x, self._rotary, fused=self._fused_rope) for x in (q, k))
        return q, k, v
