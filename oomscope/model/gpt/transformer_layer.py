"""One transformer layer: norm, attention, norm, MLP, each branch added to the residual stream.

It also decides what selective recomputation runs again, as Megatron-Core ``transformer_layer.py`` does.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from oomscope.model.base.random import dropout_add
from oomscope.model.fp8.recipe import is_bf16_layer
from oomscope.model.layers.attention import SelfAttention
from oomscope.model.layers.mlp import MLP
from oomscope.model.layers.multi_latent_attention import LatentAttention
from oomscope.model.layers.norms import make_norm
from oomscope.model.layers.rank_context import RankContext
from oomscope.model.memory.recompute import DiscardedOutput, checkpoint
from oomscope.model.moe.moe_layer import MoE


class TransformerLayer(nn.Module):
    """A layer of one rank; hidden states are [s/σ, b, h].

    Of ``recompute_modules`` ``mlp`` and ``layernorm`` are handled here, others where their modules are. A norm that
    belongs to the linear layer behind it is recomputed with ``mlp``, offloaded with ``qkv_linear``, and ``layernorm``
    has nothing to act on; experts and multi-latent attention have a norm of their own in any specification.
    """

    def __init__(self, rank: RankContext, index: int, name: str | None = None, *, runs: int = 1) -> None:
        super().__init__()
        config, model, name = rank.config, rank.config.model, name or f"layers.{index}"
        fp8, modules = None if is_bf16_layer(config, index) else rank.recipe, config.recompute_modules
        latent, moe = model.multi_latent_attention, config.is_moe_layer(index)
        self.norm1 = make_norm(rank, model.hidden_size)
        self.attention: SelfAttention | LatentAttention
        if latent:
            self.attention = LatentAttention(rank, f"{name}.attention")
        else:
            self.attention = SelfAttention(rank, f"{name}.attention", fp8)
        self.norm2 = make_norm(rank, model.hidden_size)
        self.mlp: MLP | MoE
        self.mlp = MoE(rank, f"{name}.mlp", runs=runs) if moe else MLP(rank, f"{name}.mlp", config.ffn_size, fp8)
        self._hidden_dropout = model.hidden_dropout
        self._recompute_mlp = "mlp" in modules and not moe
        self._norm1_is_fused = rank.fused_norms and not latent
        self._norm2_is_fused = rank.fused_norms and not moe
        self._discard_norm1 = "layernorm" in modules and not self._norm1_is_fused
        self._discard_norm2 = "layernorm" in modules and not self._norm2_is_fused
        self._random = rank.random
        self._offload = rank.offload

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Return [s/σ, b, h] from [s/σ, b, h]; ``mask`` [b, 1, s, s] where the batch brings one."""
        dropout_p = self._hidden_dropout if self.training else 0.0
        hidden = dropout_add(self._attention_branch(hidden, mask), hidden, dropout_p)
        return dropout_add(self._mlp_branch(hidden), hidden, dropout_p)

    def _attention_branch(self, hidden: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        if not (self._discard_norm1 and self.training):
            return self.attention(self._normed1(self.norm1, hidden), mask)  # type: ignore[no-any-return]
        norm = DiscardedOutput(self.norm1)
        out: torch.Tensor = self.attention(self._normed1(norm.run, hidden), mask)
        norm.discard(refill_before=out)
        return out

    def _mlp_branch(self, hidden: torch.Tensor) -> torch.Tensor:
        if self._recompute_mlp and self._norm2_is_fused and self.training:
            return checkpoint(self._norm_and_mlp, self._random, hidden)
        if not (self._discard_norm2 and self.training):
            return self._run_mlp(self._normed2(self.norm2, hidden))
        norm = DiscardedOutput(self.norm2)
        out = self._run_mlp(self._normed2(norm.run, hidden))
        norm.discard(refill_before=out)
        return out

    def _normed1(self, norm: Callable[..., torch.Tensor], hidden: torch.Tensor) -> torch.Tensor:
        if self._norm1_is_fused:
            return self._offload.run("qkv_linear", norm, hidden, ends=False)
        return self._offload.run("attn_norm", norm, hidden)

    def _normed2(self, norm: Callable[..., torch.Tensor], hidden: torch.Tensor) -> torch.Tensor:
        return norm(hidden) if self._norm2_is_fused else self._offload.run("mlp_norm", norm, hidden)

    def _run_mlp(self, x: torch.Tensor) -> torch.Tensor:
        if self._recompute_mlp and self.training:
            return checkpoint(self.mlp, self._random, x)
        return self.mlp(x)  # type: ignore[no-any-return]

    def _norm_and_mlp(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.mlp(self.norm2(hidden))  # type: ignore[no-any-return]
