"""Multi-latent attention (DeepSeek-V2): queries, keys and values are projected up from latents of low rank.

Megatron-Core ``transformer/multi_latent_attention.py::MLASelfAttention``. Kept are the latents on 1/σ of the tokens,
and Q, K and V, which recomputing ``mla_up_proj`` discards. The rotary part of a key is one for all heads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from oomscope.model.base.operations import Function, paired
from oomscope.model.layers.attention import CoreAttention
from oomscope.model.layers.linear import row_linear
from oomscope.model.layers.norms import make_norm
from oomscope.model.layers.rank_context import RankContext
from oomscope.model.layers.rotary import RotaryTable, rotate_into, with_own_table
from oomscope.model.memory.recompute import DiscardedOutput
from oomscope.model.parallel.tensor_parallel import TensorParallel, column_parallel_linear, enter_region


class LatentWidths(NamedTuple):
    """Widths of the latent of keys and values, and of one head."""

    latent: int
    plain: int
    """Width of a query or key without its rotary part."""
    rotary: int
    value: int


def _turn_tail(x: torch.Tensor, widths: LatentWidths, table: RotaryTable, *, sign: int) -> torch.Tensor:
    """Return ``x`` [s, b, a, d] with the rotary part, the last of each head, turned."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    out[..., : widths.plain].copy_(x[..., : widths.plain])
    rotate_into(out[..., widths.plain :], x[..., widths.plain :], table, sign=sign)
    return out


class _KeyValue(Function):
    """kv [s, b, a, plain + value], the rotary key [s, b, rotary] → k [s, b, a, plain + rotary], v [s, b, a, value]."""

    @staticmethod
    def forward(
        ctx: Any, kv: torch.Tensor, position: torch.Tensor, widths: LatentWidths, table: RotaryTable
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.how = widths, table
        s, b, a, _ = kv.shape
        k = torch.empty((s, b, a, widths.plain + widths.rotary), dtype=kv.dtype, device=kv.device)
        k[..., : widths.plain].copy_(kv[..., : widths.plain])
        rotate_into(k[..., widths.plain :], position.unsqueeze(2).expand(s, b, a, widths.rotary), table)
        return k, kv[..., widths.plain :].contiguous()

    @staticmethod
    def backward(ctx: Any, grad_k: torch.Tensor, grad_v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        widths, table = ctx.how
        grad_kv = torch.empty(
            (*grad_v.shape[:3], widths.plain + widths.value), dtype=grad_v.dtype, device=grad_v.device
        )
        grad_kv[..., : widths.plain].copy_(grad_k[..., : widths.plain])
        grad_kv[..., widths.plain :].copy_(grad_v)
        shared = grad_k[..., widths.plain :].sum(2, keepdim=True)
        grad_position = torch.empty(shared.shape, dtype=shared.dtype, device=shared.device)
        rotate_into(grad_position, shared, table, sign=-1)
        return grad_kv, grad_position.squeeze(2), None, None


class LatentAttention(nn.Module):
    """Causal self-attention of one rank's heads, through latents that all ranks compute alike.

    In Transformer Engine's specification the latents' norms belong to the projections up, and are recomputed with them.
    """

    def __init__(self, rank: RankContext, name: str) -> None:
        super().__init__()
        model, h, a = rank.config.model, rank.config.model.hidden_size, rank.config.model.num_attention_heads
        query, latent = model.q_lora_rank, model.kv_lora_rank
        widths = LatentWidths(latent, model.qk_head_dim, model.qk_pos_emb_head_dim, model.v_head_dim)
        self.q_down = None if query is None else rank.whole(f"{name}.q_down", query, h, sequence_parallel=True)
        """[q_lora_rank, h], held alike by all ranks; None projects queries straight from the hidden state."""
        self.q_norm = make_norm(rank, query) if model.qk_layernorm and query else None
        self.q_up = rank.split_rows(f"{name}.q_up", (a * (widths.plain + widths.rotary),), query or h)
        """[a·(plain + rotary)/t, q_lora_rank or h]."""
        self.kv_down = rank.whole(f"{name}.kv_down", latent + widths.rotary, h, sequence_parallel=True)
        """[kv_lora_rank + rotary, h], held alike by all ranks."""
        self.kv_norm = make_norm(rank, latent) if model.qk_layernorm else None
        self.kv_up = rank.split_rows(f"{name}.kv_up", (a * (widths.plain + widths.value),), latent)
        """[a·(plain + value)/t, kv_lora_rank]."""
        self.projection = row_linear(rank, f"{name}.projection", a * widths.value)
        self.core = CoreAttention(rank)
        self._widths = widths
        self._rotary = rank.rotary
        self._fused_rope = model.apply_rope_fusion
        self._tp = rank.tp
        self._duplicated = TensorParallel(placeholders=rank.tp.placeholders)
        self._recompute = "mla_up_proj" in rank.config.recompute_modules
        self._fused_norms = rank.fused_norms
        self._offload = rank.offload

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Return [s/σ, b, h] from [s/σ, b, h]."""
        latents = self._offload.run("qkv_linear", self._latents, x, ends=False)
        if not (self._recompute and self.training):
            context = self._attend(self._offload.run("qkv_linear", self._up, *latents), mask)
        else:
            up = DiscardedOutput(self._up)
            context = self._attend(self._offload.run("qkv_linear", up.run, *latents), mask)
            up.discard(refill_before=context)
        return self._offload.run("attn_proj", self.projection, context)  # type: ignore[no-any-return]

    def _attend(self, query_key_value: tuple[torch.Tensor, ...], mask: torch.Tensor | None) -> torch.Tensor:
        return self._offload.run("core_attn", self.core, *query_key_value, mask)  # type: ignore[no-any-return]

    def _latents(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the latents of queries [s/σ, b, q_lora_rank] and of keys and values, and the rotary key [s, b, …]."""
        query = x if self.q_down is None else column_parallel_linear(x, self.q_down, None, self._duplicated)
        both = column_parallel_linear(x, self.kv_down, None, self._duplicated)
        key_value, position = both.split_with_sizes([self._widths.latent, self._widths.rotary], dim=-1)
        if not self._fused_norms:
            query, key_value = self._normed(query, key_value)
        return query, key_value, enter_region(position, self._tp)

    def _normed(self, query: torch.Tensor, key_value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        normed_query = query if self.q_norm is None else self.q_norm(query)
        return normed_query, key_value if self.kv_norm is None else self.kv_norm(key_value)

    def _up(
        self, query: torch.Tensor, key_value: torch.Tensor, position: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return q, k [s, b, a/t, plain + rotary] and v [s, b, a/t, value]."""
        widths = self._widths
        if self._fused_norms:
            query, key_value = self._normed(query, key_value)
        q = column_parallel_linear(query, self.q_up, None, self._tp).unflatten(-1, (-1, widths.plain + widths.rotary))
        kv = column_parallel_linear(key_value, self.kv_up, None, self._tp)
        if self._rotary is None:
            raise TypeError("latent attention without rotary positions")
        table = self._rotary
        if not self._fused_rope:
            q, position = with_own_table(q, table), with_own_table(position, table)
        k, v = _KeyValue.apply(kv.unflatten(-1, (-1, widths.plain + widths.value)), position, widths, table)
        q = paired(q, lambda q: _turn_tail(q, widths, table, sign=1), lambda q: _turn_tail(q, widths, table, sign=-1))
        return q, k, v
