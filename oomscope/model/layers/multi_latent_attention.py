"""Multi-latent attention (DeepSeek-V2): queries, keys and values are projected up from latents of low rank.

Megatron-Core ``transformer/multi_latent_attention.py::MLASelfAttention``. Kept are the latents, n·q_lora_rank and
n·(kv_lora_rank + qk_pos_emb_head_dim) elements on 1/σ of the tokens, and Q, K and V as attention reads them.
Recomputing ``mla_up_proj`` keeps the latents and the gathered rotary key, and discards Q, K and V:
n·a·(2·(qk_head_dim + qk_pos_emb_head_dim) + v_head_dim)/t elements. The rotary part of a key is one for all heads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from oomscope.model.base.operations import Function
from oomscope.model.layers.attention import CoreAttention
from oomscope.model.layers.norms import LayerNorm, RMSNorm
from oomscope.model.layers.rotary import RotaryTable, rotate_into
from oomscope.model.memory.offload import KEEP_ALL, ModuleOffload
from oomscope.model.memory.recompute import DiscardedOutput
from oomscope.model.parallel.tensor_parallel import (
    RowParallelLinear,
    TensorParallel,
    column_parallel_linear,
    enter_region,
)


class LatentWidths(NamedTuple):
    """Widths of the latent of keys and values, and of one head."""

    latent: int
    plain: int
    """Of a query or key without its rotary part."""
    rotary: int
    value: int


class Projections(NamedTuple):
    """Weights and norms on the way from the hidden state to Q, K and V."""

    q_down: nn.Parameter | None
    """[q_lora_rank, h], held alike by all ranks; None projects queries straight from the hidden state."""
    q_norm: LayerNorm | RMSNorm | None
    q_up: nn.Parameter
    """[a·(plain + rotary)/t, q_lora_rank or h]."""
    kv_down: nn.Parameter
    """[kv_lora_rank + rotary, h], held alike by all ranks."""
    kv_norm: LayerNorm | RMSNorm | None
    kv_up: nn.Parameter
    """[a·(plain + value)/t, kv_lora_rank]."""


class _Query(Function):
    """q [s, b, a, d] → the same with the rotary part, the last of each head, turned."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, widths: LatentWidths, table: RotaryTable) -> torch.Tensor:
        ctx.how = widths, table
        return _turn_tail(q, widths, table)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _turn_tail(grad, *ctx.how, sign=-1), None, None


def _turn_tail(x: torch.Tensor, widths: LatentWidths, table: RotaryTable, *, sign: int = 1) -> torch.Tensor:
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

    Args:
        projections: down to the latents and up to the heads.
        projection: [s, b, a·value/t] → [s/σ, b, h].
        core: what happens between.
        widths: of latents and heads.
        rotary: the table of the rotary part.
        tp: how the group works.
        recompute: discard Q, K and V once attention has used them (``mla_up_proj``).
        fused_norms: the latents' norms belong to the projections up (Transformer Engine's specification), and are
            recomputed with them.
        offload: what goes to the host.
    """

    def __init__(
        self,
        projections: Projections,
        projection: RowParallelLinear,
        core: CoreAttention,
        *,
        widths: LatentWidths,
        rotary: RotaryTable | None,
        tp: TensorParallel,
        recompute: bool,
        fused_norms: bool,
        offload: ModuleOffload = KEEP_ALL,
    ) -> None:
        super().__init__()
        self.q_down, self.q_norm, self.q_up, self.kv_down, self.kv_norm, self.kv_up = projections
        self.projection = projection
        self.core = core
        self._widths = widths
        self._rotary = rotary
        self._tp = tp
        self._duplicated = TensorParallel(placeholders=tp.placeholders)
        self._recompute = recompute
        self._fused_norms = fused_norms
        self._offload = offload

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
        k, v = _KeyValue.apply(kv.unflatten(-1, (-1, widths.plain + widths.value)), position, widths, self._rotary)
        return _Query.apply(q, widths, self._rotary), k, v
