"""Causal flash attention over the ranks of a context-parallel group, in Transformer Engine's four ways.

``p2p`` passes keys and values round a ring (Liu et al. 2023), ``a2a`` gives each rank whole sequences of 1/c of its
heads (Jacobs et al. 2023, Ulysses), ``a2a+p2p`` does the first among groups that have done the second, ``all_gather``
fetches all keys and values, and again in backward (Dubey et al. 2024, section 3.3.2). ``docs/design/model.md`` says
what each keeps. Tensors are [s/c, b, heads, d]; the kernels see them as [b, heads, s/c, d].
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from oomscope.config.schema import FlashKernels
from oomscope.model.base.device import capability, takes_flash_attn
from oomscope.model.base.operations import Function, all_gather, paired, reduce_scatter
from oomscope.model.layers.core_attention import (
    FlashOutput,
    batch_first,
    flash_backward,
    flash_forward,
    fused_attention,
)
from oomscope.model.parallel.context_parallel import ContextParallel


def context_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cp: ContextParallel,
    *,
    dropout_p: float,
    kernels: FlashKernels = "auto",
) -> torch.Tensor:
    """Return the context [s/c, b, a·d] of [s/c, b, a, d] and [s/c, b, g, d], in the order of ``ContextParallel``."""
    if cp.communication == "a2a":
        whole = (_sequence_for_heads(x, cp) for x in (q, k, v))
        context = fused_attention(*whole, dropout_p=dropout_p)
        return _heads_for_sequence(context.unflatten(-1, (-1, q.shape[-1])), cp).flatten(2)
    copied = takes_flash_attn(capability(q.device), kernels)
    if copied:
        q, k, v = batch_first(q, k, v)
    if cp.levels is not None:
        neighbours, ring = cp.levels
        q, k, v = (_sequence_for_heads(x, neighbours) for x in (q, k, v))
        part = _RingAttention.apply(q, k, v, (ring, dropout_p))
        return _heads_for_sequence(part, neighbours).flatten(2)
    attention = _GatheredAttention if cp.communication == "all_gather" else _RingAttention
    merged: torch.Tensor = attention.apply(q, k, v, (cp, dropout_p)).flatten(2)
    return merged.clone() if copied else merged  # what flash-attn's backward reads has the batch first


def _heads_first(x: torch.Tensor) -> torch.Tensor:
    return x.permute(1, 2, 0, 3)


def _sequence_first(x: torch.Tensor) -> torch.Tensor:
    return x.permute(2, 0, 1, 3)


def _queries(x: torch.Tensor, step: int, rank: int, dim: int) -> torch.Tensor:
    """Return the rows that attend at ``step`` of the ring: all of them, then those of the later chunk only."""
    if step <= rank:
        return x
    rows = x.shape[dim] // 2
    return x.narrow(dim, rows, rows)


# Ring ------------------------------------------------------------------------------------------------------------


class _RingAttention(Function):
    """At step i rank r holds the keys and values of rank r - i; they go on to r + 1, and in backward back.

    Those of an earlier rank are seen by all queries, and their earlier chunk only; those of a later rank by the later
    chunk of queries, and both of their chunks.
    """

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, how: tuple[ContextParallel, float]
    ) -> torch.Tensor:
        cp, dropout_p = ctx.how = how
        blocks = [torch.stack((k, v))]
        parts: list[FlashOutput] = []
        for step in range(cp.size):
            if step < cp.size - 1:
                blocks.append(torch.empty_like(blocks[-1]))
                cp.send_on(blocks[-2], blocks[-1], step=1)
            queries = _heads_first(_queries(q, step, cp.rank, 0))
            keys, values = _block(blocks[step], step, cp.rank)
            parts.append(flash_forward(queries, keys, values, dropout_p=dropout_p, causal=step == 0))
        lse = parts[0].lse.clone()
        for step in range(1, cp.size):
            seen = _queries(lse, step, cp.rank, 2)
            seen.copy_(torch.logaddexp(seen, parts[step].lse))
        total = parts[0].out * torch.exp(parts[0].lse - lse).unsqueeze(-1)
        for step in range(1, cp.size):  # each partial output at its weight in the whole
            rows, seen = _queries(total, step, cp.rank, 2), _queries(lse, step, cp.rank, 2)
            rows.add_(parts[step].out * torch.exp(parts[step].lse - seen).unsqueeze(-1))
        out = _sequence_first(total.to(q.dtype)).contiguous()
        ctx.save_for_backward(q, blocks[-1], out, lse, *(state for part in parts for state in part.random))
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        q, block, out, lse, *random = ctx.saved_tensors
        cp, dropout_p = ctx.how
        states = len(random) // cp.size
        grad_q = torch.zeros_like(q)
        here, arriving = (torch.empty((2, *block.shape), dtype=block.dtype, device=block.device) for _ in range(2))
        cp.observer.role("communication", [here])
        here[0].copy_(block)
        here[1].zero_()
        for step in reversed(range(cp.size)):
            keys, values = _block(here[0], step, cp.rank)
            of_step = tuple(random[step * states : (step + 1) * states])
            rows = [_heads_first(_queries(x, step, cp.rank, 0)) for x in (grad, q, out)]
            saved = FlashOutput(rows[2], _queries(lse, step, cp.rank, 2).contiguous(), of_step)
            grads = flash_backward(rows[0], rows[1], keys, values, saved, dropout_p=dropout_p, causal=step == 0)
            _queries(grad_q, step, cp.rank, 0).add_(_sequence_first(grads[0]))
            for target, part in zip(_block(here[1], step, cp.rank), grads[1:], strict=True):
                target.add_(part)
            del grads
            if step:
                cp.send_on(here, arriving, step=-1)
                here, arriving = arriving, here
        return grad_q, here[1, 0], here[1, 1], None


def _block(pair: torch.Tensor, step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the keys and values [b, g, s', d] of ``pair`` [2, s/c, b, g, d] that are seen at ``step``."""
    rows = pair.shape[1] // 2 if 0 < step <= rank else pair.shape[1]
    return _heads_first(pair[0, :rows]), _heads_first(pair[1, :rows])


# Heads for sequence ----------------------------------------------------------------------------------------------


def _sequence_for_heads(x: torch.Tensor, cp: ContextParallel) -> torch.Tensor:
    return paired(x, lambda x: _gather_sequence(x, cp), lambda grad: _gather_heads(grad, cp))


def _heads_for_sequence(x: torch.Tensor, cp: ContextParallel) -> torch.Tensor:
    return paired(x, lambda x: _gather_heads(x, cp), lambda grad: _gather_sequence(grad, cp))


def _gather_sequence(x: torch.Tensor, cp: ContextParallel) -> torch.Tensor:
    """Return all tokens of 1/c of the heads [s, b, a/c, d], in order, from [s/c, b, a, d]."""
    rows, b, heads, d = x.shape
    sent = x.view(rows, b, cp.size, heads // cp.size, d).permute(2, 0, 1, 3, 4).contiguous()
    chunks = _exchange(sent, cp).view(2 * cp.size, rows // 2, b, heads // cp.size, d)
    return chunks.index_select(0, _inverse(cp.chunk_of_place, x.device)).flatten(0, 1)


def _gather_heads(x: torch.Tensor, cp: ContextParallel) -> torch.Tensor:
    """Return this rank's tokens of all heads [s/c, b, a, d] from [s, b, a/c, d]."""
    s, b, heads, d = x.shape
    chunks = x.reshape(2 * cp.size, s // (2 * cp.size), b, heads, d)
    sent = chunks.index_select(0, torch.tensor(cp.chunk_of_place, device=x.device))
    by_rank = _exchange(sent, cp).view(cp.size, s // cp.size, b, heads, d)
    return by_rank.permute(1, 2, 0, 3, 4).reshape(s // cp.size, b, cp.size * heads, d)


def _exchange(x: torch.Tensor, cp: ContextParallel) -> torch.Tensor:
    received = torch.empty_like(x)
    cp.observer.role("communication", [received])
    dist.all_to_all_single(received, x, group=cp.group)
    return received


def _inverse(order: list[int], device: torch.device) -> torch.Tensor:
    return torch.tensor([order.index(chunk) for chunk in range(len(order))], device=device)


# All keys and values ---------------------------------------------------------------------------------------------


class _GatheredAttention(Function):
    """Each of the two chunks of queries sees all keys up to its own last token, by one kernel."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, how: tuple[ContextParallel, float]
    ) -> torch.Tensor:
        cp, dropout_p = ctx.how = how
        keys, values = (_all_tokens(x, cp) for x in (k, v))
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        saved: list[torch.Tensor] = []
        for queries, target, chunk in zip(q.chunk(2), out.chunk(2), cp.chunks, strict=True):
            seen = slice((chunk + 1) * queries.shape[0])
            rows = [_heads_first(x) for x in (queries, keys[seen], values[seen])]
            part = flash_forward(rows[0], rows[1], rows[2], dropout_p=dropout_p)
            target.copy_(_sequence_first(part.out))
            saved += [part.lse, *part.random]
        ctx.save_for_backward(q, k, v, out, *saved)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        q, k, v, out, *saved = ctx.saved_tensors
        cp, dropout_p = ctx.how
        keys, values = (_all_tokens(x, cp) for x in (k, v))
        grad_q = torch.empty_like(q, memory_format=torch.contiguous_format)
        grad_keys, grad_values = torch.zeros_like(keys), torch.zeros_like(values)
        of_chunk = len(saved) // 2
        chunks = zip(*(x.chunk(2) for x in (q, out, grad, grad_q)), strict=True)
        for half, (queries, outputs, grads, target) in enumerate(chunks):
            seen = slice((cp.chunks[half] + 1) * queries.shape[0])
            lse, *random = saved[half * of_chunk : (half + 1) * of_chunk]
            rows = [_heads_first(x) for x in (grads, queries, keys[seen], values[seen], outputs)]
            parts = flash_backward(
                rows[0], rows[1], rows[2], rows[3], FlashOutput(rows[4], lse, tuple(random)), dropout_p=dropout_p
            )
            target.copy_(_sequence_first(parts[0]))
            grad_keys[seen].add_(_sequence_first(parts[1]))
            grad_values[seen].add_(_sequence_first(parts[2]))
        del keys, values
        return grad_q, _own_tokens(grad_keys, cp), _own_tokens(grad_values, cp), None


def _all_tokens(x: torch.Tensor, cp: ContextParallel) -> torch.Tensor:
    """Return [s, b, g, d], in order, from the ranks' [s/c, b, g, d]."""
    gathered = torch.empty((cp.size * x.shape[0], *x.shape[1:]), dtype=x.dtype, device=x.device)
    cp.observer.role("communication", [gathered])
    all_gather(gathered, x.contiguous(), cp.group)
    chunks = gathered.view(2 * cp.size, -1, *x.shape[1:])
    return chunks.index_select(0, _inverse(cp.chunk_of_place, x.device)).flatten(0, 1)


def _own_tokens(x: torch.Tensor, cp: ContextParallel) -> torch.Tensor:
    """Return this rank's [s/c, b, g, d] of the sum of ``x`` [s, b, g, d] over the ranks."""
    chunks = x.view(2 * cp.size, -1, *x.shape[1:])
    by_rank = chunks.index_select(0, torch.tensor(cp.chunk_of_place, device=x.device)).flatten(0, 1)
    own = torch.empty((x.shape[0] // cp.size, *x.shape[1:]), dtype=x.dtype, device=x.device)
    reduce_scatter(own, by_rank, cp.group)
    return own
