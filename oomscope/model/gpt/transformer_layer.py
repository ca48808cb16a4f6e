"""One transformer layer: norm, attention, norm, MLP, each branch added to the residual stream.

It also decides what selective recomputation runs again, as Megatron-Core ``transformer_layer.py`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import nn

from oomscope.model.base.random import ModelParallelRandom, dropout_add
from oomscope.model.layers.attention import SelfAttention
from oomscope.model.layers.mlp import MLP
from oomscope.model.layers.multi_latent_attention import LatentAttention
from oomscope.model.layers.norms import LayerNorm, RMSNorm
from oomscope.model.memory.offload import KEEP_ALL, ModuleOffload
from oomscope.model.memory.recompute import DiscardedOutput, checkpoint
from oomscope.model.moe.moe_layer import MoE


class TransformerLayer(nn.Module):
    """A layer of one rank; hidden states are [s/σ, b, h].

    Args:
        norm1: before attention.
        attention: self-attention.
        norm2: before the MLP.
        mlp: the dense MLP, or the experts.
        hidden_dropout: of both branches.
        recompute_modules: ``mlp`` and ``layernorm`` are handled here, others where their modules are.
        fused_norms: the norms belong to the linear layer behind them (Transformer Engine's specification), so
            that recomputing ``mlp`` covers its norm, and ``layernorm`` has nothing to act on. Experts and
            multi-latent attention have a norm of their own before them in any specification.
        random: the rank's random numbers.
        offload: what goes to the host; of the norms only those that stand by themselves, while a fused one is a part
            of ``qkv_linear``.
    """

    def __init__(
        self,
        norm1: LayerNorm | RMSNorm,
        attention: SelfAttention | LatentAttention,
        norm2: LayerNorm | RMSNorm,
        mlp: MLP | MoE,
        *,
        hidden_dropout: float,
        recompute_modules: Collection[str],
        fused_norms: bool,
        random: ModelParallelRandom,
        offload: ModuleOffload = KEEP_ALL,
    ) -> None:
        super().__init__()
        self.norm1 = norm1
        self.attention = attention
        self.norm2 = norm2
        self.mlp = mlp
        self._hidden_dropout = hidden_dropout
        dense = isinstance(mlp, MLP)
        self._recompute_mlp = "mlp" in recompute_modules and dense
        single_projection = isinstance(attention, SelfAttention)
        self._norm1_is_fused = fused_norms and single_projection
        self._norm2_is_fused = fused_norms and dense
        self._discard_norm1 = "layernorm" in recompute_modules and not self._norm1_is_fused
        self._discard_norm2 = "layernorm" in recompute_modules and not self._norm2_is_fused
        self._fused_norms = fused_norms
        self._random = random
        self._offload = offload

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
        if self._recompute_mlp and self._fused_norms and self.training:
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
