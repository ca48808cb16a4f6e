"""Causal core attention, from Q, K, V [s, b, heads, d] to the context [s, b, a·d]: flash, or unfused.

Flash keeps the log-sum-exp of each row, unfused the probabilities (Korthikanti et al. 2022, section 4.1), and K and V
repeated for the query heads (GQA).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from oomscope.config.schema import FlashKernels, Softmax
from oomscope.errors import ConfigError
from oomscope.model.base.device import MemoryBuffer, capability, takes_flash_attn
from oomscope.model.base.operations import Function
from oomscope.model.base.random import dropout


def flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, dropout_p: float, kernels: FlashKernels = "auto"
) -> torch.Tensor:
    """Return the context [s, b, a·d] by the fused kernel: cuDNN's where values are narrower than keys (MLA).

    Where that is flash-attn's, its output is kept twice: with the batch first here, and with the sequence first as the
    input of what follows (``base/device.py``). On the CPU there is no dropout, and a ConfigError if it is asked for.
    """
    if q.shape[-1] == v.shape[-1] and takes_flash_attn(capability(q.device), kernels):
        q, k, v = batch_first(q, k, v)
    return fused_attention(q, k, v, dropout_p=dropout_p).contiguous()


def batch_first(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return [s, b, heads, d] as copies that lie in memory as [b, s, heads, d].

    Transformer Engine hands such to flash-attn (pytorch/attention/dot_product_attention/backends.py, FlashAttention).
    """
    return tuple(x.transpose(0, 1).contiguous().transpose(0, 1) for x in tensors)


def fused_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, dropout_p: float) -> torch.Tensor:
    """Return the context [s, b, a·d], in the memory order of Q, as the kernel makes it."""
    if q.device.type == "cpu" and dropout_p > 0:
        raise ConfigError(
            "flash attention on the CPU has no dropout",
            where="model.attention_dropout",
            remedy="set it to 0, or model.attention_backend to unfused",
        )
    if q.device.type == "cpu" and q.shape[-1] != v.shape[-1]:
        return unfused_attention(q, k, v, dropout_p=0.0)
    context_bash = _FlashAttention.apply(*(x.permute(1, 2, 0, 3) for x in (q, k, v)), dropout_p)
    return context_bash.permute(2, 0, 1, 3).flatten(2)  # type: ignore[no-any-return]


class FlashOutput(NamedTuple):
    """What the flash kernel returns of one block, and its backward reads."""

    out: torch.Tensor
    """Output [b, a, s, d], in the memory order of Q."""
    lse: torch.Tensor
    """Log-sum-exp of each row of scores, fp32 [b, a, s]."""
    random: tuple[torch.Tensor, ...]
    """Seed and offset of the dropout; empty on the CPU, whose kernel has none."""


def flash_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, dropout_p: float, causal: bool = True
) -> FlashOutput:
    """Attend from q [b, a, s, d] to k and v [b, g, s', d] with torch's own flash kernel.

    Where values have another width, cuDNN's kernel takes its place, since FlashAttention 2 wants equal ones, as in
    Transformer Engine. With ``causal`` the last query sees all s' keys, the one before it one less (as
    ``torch.nn.attention.bias`` ``causal_lower_right``).
    """
    if q.shape[-1] != v.shape[-1]:
        out, lse, _, _, _, _, seed, offset, _ = torch.ops.aten._scaled_dot_product_cudnn_attention(
            q, k, v, None, True, dropout_p, causal, False
        )
        return FlashOutput(out, lse, (seed, offset))
    if q.device.type == "cpu":
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, **_cpu_causality(q, k, causal=causal)
        )
        return FlashOutput(out, lse, ())
    out, lse, _, _, _, _, seed, offset, _ = torch.ops.aten._scaled_dot_product_flash_attention(
        q, k, v, dropout_p, causal, False
    )
    return FlashOutput(out, lse, (seed, offset))


def flash_backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    saved: FlashOutput,
    *,
    dropout_p: float,
    causal: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of q, k and v.

    ``saved`` may come from attention to more keys than ``k``: the gradients are then the part that ``k`` has in it.
    """
    if q.shape[-1] != v.shape[-1]:
        grads = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
            grad, q, k, v, saved.out, saved.lse, *saved.random, *[None] * 3, q.shape[2], k.shape[2], dropout_p, causal
        )
    elif grad.device.type == "cpu":
        grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, q, k, v, saved.out, saved.lse, 0.0, **_cpu_causality(q, k, causal=causal)
        )
    else:
        grads = torch.ops.aten._scaled_dot_product_flash_attention_backward(
            grad, q, k, v, saved.out, saved.lse, None, None, q.shape[2], k.shape[2], dropout_p, causal, *saved.random
        )
    return grads[0], grads[1], grads[2]


def _cpu_causality(q: torch.Tensor, k: torch.Tensor, *, causal: bool) -> dict[str, Any]:
    """Return the arguments by which the CPU's kernel, which aligns at the upper left, masks as the others do."""
    queries, keys = q.shape[2], k.shape[2]
    if not causal or queries == keys:
        return {"is_causal": causal}
    mask = torch.full((queries, keys), -math.inf, dtype=q.dtype).triu_(keys - queries + 1)
    return {"is_causal": False, "attn_mask": mask}


class _FlashAttention(Function):
    """q [b, a, s, d], k [b, g, s, d], v [b, g, s, d'] → [b, a, s, d']."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float) -> torch.Tensor:
        ctx.dropout_p = dropout_p
        out, lse, random = flash_forward(q, k, v, dropout_p=dropout_p)
        ctx.save_for_backward(q, k, v, out, lse, *random)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        q, k, v, out, lse, *random = ctx.saved_tensors
        saved = FlashOutput(out, lse, tuple(random))
        return *flash_backward(grad, q, k, v, saved, dropout_p=ctx.dropout_p), None


def causal_mask(batch: int, seq_length: int, device: torch.device) -> torch.Tensor:
    """Return the boolean mask [b, 1, s, s], true where a query may not look."""
    return torch.ones(batch, 1, seq_length, seq_length, dtype=torch.bool, device=device).triu_(1)


def unfused_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    dropout_p: float,
    buffer: MemoryBuffer | None = None,
    softmax: Softmax = "kernel",
) -> torch.Tensor:
    """Return the context [s, b, a·d] of [s, b, a, d] and [s, b, g, d]: scores and softmax, dropout, weighted sum.

    Without ``mask`` (``causal_mask`` of one or of all b samples) one is made. ``buffer`` is scratch memory that the
    product of Q and K is given as the matrix to add to, as Megatron's local attention does. Grouped K and V are
    repeated for their query heads, and kept so (Megatron-Core ``dot_product_attention.py``; Transformer Engine
    ``dot_product_attention/backends.py``, UnfusedDotProductAttention).
    """
    heads, groups = q.shape[2], k.shape[2]
    if groups != heads:
        q = q.contiguous()
        k, v = (x.repeat_interleave(heads // groups, dim=2) for x in (k, v))
    scores = None  # kept until the context is there, as upstream, unless by the kernel
    if softmax != "kernel":
        scores = _Scores.apply(q, k, buffer).unflatten(0, q.shape[1:3])
    context: torch.Tensor = _WeightedSum.apply(
        dropout(
            _CausalSoftmax.apply(q, k, mask, buffer)
            if scores is None
            else _torch_softmax(scores, mask, in_fp32=softmax == "fp32"),
            dropout_p,
        ),
        v,
    )
    return context


def _torch_softmax(scores: torch.Tensor, mask: torch.Tensor | None, *, in_fp32: bool) -> torch.Tensor:
    """Return probabilities by torch's own operations, in fp32 with a copy in the scores' format.

    Source: Megatron-Core ``fusions/fused_softmax.py`` and Transformer Engine ``softmax.py``, forward_torch_softmax.
    """
    hidden = _cached_mask(scores.shape[-1], scores.device) if mask is None else mask
    masked: torch.Tensor = _Masked.apply(scores.float() if in_fp32 else scores, hidden)
    return torch.softmax(masked, dim=-1).to(scores.dtype)


@lru_cache(maxsize=8)
def _cached_mask(seq_length: int, device: torch.device) -> torch.Tensor:
    """Return a mask that stays, as upstream's."""
    return causal_mask(1, seq_length, device)


class _Masked(Function):
    """Fills in place; backward copies, as that of ``masked_fill_``."""

    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(scores)
        ctx.mask = mask
        return scores.masked_fill_(mask, -math.inf)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad.masked_fill(ctx.mask, 0), None


def _by_head(x: torch.Tensor) -> torch.Tensor:
    """Return [b·a, s, d] from [s, b, a, d]."""
    s, b, heads, d = x.shape
    return x.reshape(s, b * heads, d).transpose(0, 1)


def _by_sample(x: torch.Tensor, b: int) -> torch.Tensor:
    """Return [s, b, a, d] from [b·a, s, d]."""
    return x.view(b, -1, *x.shape[1:]).permute(2, 0, 1, 3)


def _scores(q: torch.Tensor, k: torch.Tensor, buffer: MemoryBuffer | None) -> torch.Tensor:
    """Return [b·a, s, s]."""
    s, b, a, d = q.shape
    factors, shape, scale = (_by_head(q), _by_head(k).transpose(1, 2)), (b * a, s, s), 1.0 / math.sqrt(d)
    if buffer is None:
        scores = torch.empty(shape, dtype=q.dtype, device=q.device)
        scores.baddbmm_(*factors, beta=0, alpha=scale)
    else:
        addend = buffer.take(shape, dtype=q.dtype, device=q.device)
        scores = torch.baddbmm(addend, *factors, beta=0, alpha=scale)
    return scores


def _scores_backward(grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    s, b, a, d = q.shape
    scale, grad = 1.0 / math.sqrt(d), grad.view(b * a, s, s)
    grad_q = torch.empty((b * a, s, d), dtype=q.dtype, device=q.device)
    grad_q.baddbmm_(grad, _by_head(k), beta=0, alpha=scale)
    grad_k = torch.empty((b * a, s, d), dtype=q.dtype, device=q.device)
    grad_k.baddbmm_(grad.transpose(1, 2), _by_head(q), beta=0, alpha=scale)
    return _by_sample(grad_q, b), _by_sample(grad_k, b)


class _Scores(Function):
    """q, k [s, b, a, d] → scores [b·a, s, s]."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, buffer: MemoryBuffer | None) -> torch.Tensor:
        ctx.save_for_backward(q, k)
        return _scores(q, k, buffer)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        return *_scores_backward(grad, *ctx.saved_tensors), None


class _CausalSoftmax(Function):
    """q, k [s, b, a, d] → probabilities [b, a, s, s], as a kernel makes them; the raw scores do not outlive it."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor | None, buffer: MemoryBuffer | None
    ) -> torch.Tensor:
        scores = _scores(q, k, buffer).unflatten(0, q.shape[1:3])
        hidden = causal_mask(1, q.shape[0], q.device) if mask is None else mask
        probabilities = torch.softmax(scores.masked_fill_(hidden, -math.inf), dim=-1)
        ctx.save_for_backward(q, k, probabilities)
        return probabilities

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        q, k, probabilities = ctx.saved_tensors
        grad_scores = torch.ops.aten._softmax_backward_data(grad, probabilities, -1, grad.dtype)
        return *_scores_backward(grad_scores, q, k), None, None


class _WeightedSum(Function):
    """probabilities [b, a, s, s], v [s, b, a, d] → context [s, b, a·d], contiguous."""

    @staticmethod
    def forward(ctx: Any, probabilities: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        b, a, s, _ = probabilities.shape
        ctx.save_for_backward(probabilities, v)
        context = torch.bmm(probabilities.view(b * a, s, s), _by_head(v))
        return context.transpose(0, 1).reshape(s, b, -1)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        probabilities, v = ctx.saved_tensors
        b, a, s, _ = probabilities.shape
        grad_context = grad.reshape(s, b * a, -1).transpose(0, 1)
        grad_probabilities = torch.bmm(grad_context, _by_head(v).transpose(1, 2)).view(b, a, s, s)
        grad_v = torch.bmm(probabilities.view(b * a, s, s).transpose(1, 2), grad_context)
        return grad_probabilities, _by_sample(grad_v, b)
