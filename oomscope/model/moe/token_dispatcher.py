"""Sends each token to the ranks that hold its experts, and brings the results back.

Two ways of Megatron-Core ``moe/token_dispatcher.py``: ``alltoall`` sends each row where it is wanted, and under expert
tensor parallelism gathers what arrives over the ranks that share an expert; ``allgather`` brings all tokens of the
group to every rank, which picks its own. Rows reach the experts sorted by expert.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from oomscope.config.schema import ModelConfig
from oomscope.model.base.device import MemoryBuffer, computes
from oomscope.model.base.operations import Function, all_gather, gather_rows, paired, scatter_rows
from oomscope.model.moe.permutation import RowMap, permute, permute_with_probabilities, select_probabilities, unpermute
from oomscope.model.moe.routing import Routing, capacity
from oomscope.model.parallel.parallel_state import ParallelState


class DispatchedRows(NamedTuple):
    """What reaches the experts of a rank."""

    rows: torch.Tensor
    """[R, h], sorted by expert."""
    weights: torch.Tensor
    """[R], in the router's number format."""
    counts: list[int]
    """Rows of each local expert."""


# How many rows go where ------------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """How many rows go where."""

    sent: list[int]
    """Rows for each rank of the expert-parallel group."""
    received: list[list[int]]
    """Rows from each rank of ``expert_tp_ep`` for each of this rank's experts; senders with expert TP slowest."""

    @property
    def by_expert(self) -> list[int]:
        """Rows for each of this rank's experts."""
        return [sum(rows) for rows in zip(*self.received, strict=True)]


def nominal_plan(tokens: int, model: ModelConfig, state: ParallelState) -> Plan:
    """Return the exchange of the rows of ``tokens`` on each rank under even routing, times ``moe_imbalance_factor``.

    An expert takes at most its capacity of each rank's tokens, and each token once.
    """
    num_experts, rows = model.num_moe_experts or 1, tokens * model.moe_router_topk
    local = num_experts // state.ep.size
    limit = min(tokens, capacity(tokens, model) or tokens)
    if is_padded(model):
        return Plan([limit * local] * state.ep.size, [[limit] * local] * state.expert_tp_ep.size)
    shares = [min(share, limit) for share in _even(rows, num_experts)]
    sent = [sum(shares[rank * local : (rank + 1) * local]) for rank in range(state.ep.size)]
    sent_here = min(rows, round(rows // state.ep.size * model.moe_imbalance_factor)) if state.ep.size > 1 else rows
    arriving = [min(share, limit) for share in _even(sent_here, local)]
    return Plan(sent, [arriving] * state.expert_tp_ep.size)


def is_padded(model: ModelConfig) -> bool:
    """Whether every expert gets its capacity, so that no size depends on the routing."""
    return model.moe_pad_expert_input_to_capacity and model.moe_expert_capacity_factor is not None


def _even(rows: int, parts: int) -> list[int]:
    return [rows * (part + 1) // parts - rows * part // parts for part in range(parts)]


def plan(visits: torch.Tensor, model: ModelConfig, state: ParallelState) -> Plan:
    """Return how the rows of ``visits`` [n, E] are exchanged.

    Real routing is counted and the counts exchanged. Where there is none, on a device without values or among ranks
    that are only played, each rank sends even shares and receives ``moe_imbalance_factor`` times as much. Padded to the
    capacity there is nothing to count.
    """
    tokens, num_experts = visits.shape
    local = num_experts // state.ep.size
    if is_padded(model) or not observes_routing(visits.device, state):
        return nominal_plan(tokens, model, state)
    counts = visits.sum(0)
    everyone = counts
    if state.expert_tp_ep.size > 1:
        everyone = torch.empty(state.expert_tp_ep.size * num_experts, dtype=counts.dtype, device=counts.device)
        all_gather(everyone, counts, state.expert_tp_ep.group)
    size, parts = state.ep.size, state.expert_tp.size
    by_sender = everyone.view(size, parts, size, local)[:, :, state.ep.rank].transpose(0, 1).flatten(0, 1)
    return Plan(counts.view(state.ep.size, local).sum(1).tolist(), by_sender.tolist())


def observes_routing(device: torch.device, state: ParallelState) -> bool:
    """Whether the router's choice is known: there are values, and the other ranks are not only played."""
    group = state.expert_tp_ep.group
    return computes(device) and (group is None or dist.get_backend(group) != "fake")


# Collectives on rows ---------------------------------------------------------------------------------------------


def _exchange(x: torch.Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup | None) -> torch.Tensor:
    there, back = (sent, received), (received, sent)
    return paired(x, lambda x: _all_to_all(x, *there, group), lambda grad: _all_to_all(grad, *back, group))


def _all_to_all(x: torch.Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup | None) -> torch.Tensor:
    out = torch.empty((sum(received), *x.shape[1:]), dtype=x.dtype, device=x.device)
    dist.all_to_all_single(out, x.contiguous(), received, sent, group=group)
    return out


def _gather_rows(x: torch.Tensor, sizes: list[int], state: ParallelState) -> torch.Tensor:
    """Gather shards of different size as c10d does where they differ: by one broadcast each."""
    out = torch.empty((sum(sizes), *x.shape[1:]), dtype=x.dtype, device=x.device)
    parts = out.split(sizes)
    parts[state.expert_tp.rank].copy_(x)
    for rank, part in enumerate(parts):
        dist.broadcast(part, group=state.expert_tp.group, group_src=rank)
    return out


def _scatter_rows(x: torch.Tensor, sizes: list[int], state: ParallelState) -> torch.Tensor:
    """Reduce to each rank its rows; ``x``, which is not read again, is overwritten."""
    parts = x.contiguous().split(sizes)
    for rank, part in enumerate(parts):
        dist.reduce(part, group=state.expert_tp.group, group_dst=rank)
    return parts[state.expert_tp.rank].clone()  # type: ignore[no-any-return]


class _SortChunks(Function):
    """Puts blocks of rows into another order; the fused kernel keeps a map of them, 4 bytes a row."""

    @staticmethod
    def forward(ctx: Any, sizes: list[int], order: list[int], fused: bool, *rows: torch.Tensor) -> tuple[Any, ...]:
        ctx.chunks = sizes, order
        if fused:
            ctx.save_for_backward(torch.empty(rows[0].shape[0], dtype=torch.int32, device=rows[0].device))
        return tuple(_reorder(x, sizes, order) for x in rows)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        return None, None, None, *(_reorder(grad, *_inverse(*ctx.chunks)) for grad in grads)


def _reorder(x: torch.Tensor, sizes: list[int], order: list[int]) -> torch.Tensor:
    blocks = x.split_with_sizes(sizes)
    return torch.cat([blocks[index] for index in order])


def _inverse(sizes: list[int], order: list[int]) -> tuple[list[int], list[int]]:
    """Return the sizes and the order that undo ``_reorder``."""
    back = [0] * len(order)
    for place, index in enumerate(order):
        back[index] = place
    return [sizes[index] for index in order], back


# The two ways ----------------------------------------------------------------------------------------------------


class AlltoAllTokenDispatcher:
    """``alltoall``: permute, exchange over EP, gather over expert TP, sort by expert; and back.

    Sums over expert TP are taken in the router's number format (``combine_preprocess``).
    """

    def __init__(self, routing: Routing, model: ModelConfig, state: ParallelState) -> None:
        self._routing = routing
        self._fused = model.moe_permute_fusion
        self._padded = is_padded(model)
        self._state = state
        rows = plan(routing.visits, model, state)
        self._sent = rows.sent
        totals = [sum(counts) for counts in rows.received]
        by_part = [totals[start : start + state.ep.size] for start in range(0, len(totals), state.ep.size)]
        self._received = by_part[state.expert_tp.rank]
        self._gathered = [sum(part) for part in by_part]
        self._counts = rows.by_expert
        self._sizes = [count for counts in rows.received for count in counts]
        local = len(self._counts)
        self._order = [sender * local + expert for expert in range(local) for sender in range(state.expert_tp_ep.size)]

    def dispatch(self, x: torch.Tensor) -> DispatchedRows:
        """Return what this rank's experts work on, from its tokens [n, h]."""
        rows, weights, source = permute_with_probabilities(
            x, self._routing, sum(self._sent), fused=self._fused, padded=self._padded
        )
        self._source: tuple[RowMap, int] = source, x.shape[0]
        rows, weights = (self._carry(part) for part in (rows, weights))
        if len(self._counts) > 1:
            rows, weights = _SortChunks.apply(self._sizes, self._order, self._fused, rows, weights)
        return DispatchedRows(rows, weights, self._counts)

    def combine(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the sum [n, h] of what the experts made of each token, from this rank's outputs [R, h]."""
        if len(self._counts) > 1:
            (rows,) = _SortChunks.apply(*_inverse(self._sizes, self._order), self._fused, rows)
        if self._state.expert_tp.size > 1:
            sizes, state, dtype = self._gathered, self._state, self._routing.probabilities.dtype
            rows = paired(
                rows.to(dtype), lambda x: _scatter_rows(x, sizes, state), lambda grad: _gather_rows(grad, sizes, state)
            ).to(rows.dtype)
        if self._state.ep.size > 1:
            rows = _exchange(rows, self._received, self._sent, self._state.ep.group)
        return unpermute(rows, *self._source)

    def _carry(self, rows: torch.Tensor) -> torch.Tensor:
        if self._state.ep.size > 1:
            rows = _exchange(rows, self._sent, self._received, self._state.ep.group)
        if self._state.expert_tp.size == 1:
            return rows
        sizes, state = self._gathered, self._state
        return paired(rows, lambda x: _gather_rows(x, sizes, state), lambda grad: _scatter_rows(grad, sizes, state))


class AllGatherTokenDispatcher:
    """``allgather``: every rank that shares experts sees all their tokens, and sums the outputs of its experts.

    Upstream moves probabilities and sums in the router's number format, and gathers tokens into scratch memory that
    stays for the whole run (``use_global_buffer``).
    """

    def __init__(self, routing: Routing, model: ModelConfig, state: ParallelState, buffer: MemoryBuffer) -> None:
        self._model = model
        self._state = state
        self._buffer = buffer
        self._dtype = routing.probabilities.dtype
        self._nominal = None if observes_routing(routing.visits.device, state) else plan(routing.visits, model, state)
        visits, probabilities = routing.visits, routing.probabilities
        if state.expert_tp_ep.size > 1:
            group, ranks = state.expert_tp_ep.group, state.expert_tp_ep.size
            visits = gather_rows(visits.view(torch.uint8), group, ranks).view(torch.bool)
            probabilities = self._gather_tokens(probabilities, None)
        local = visits.shape[1] // state.ep.size
        mine = slice(state.ep.rank * local, (state.ep.rank + 1) * local)
        self._visits, self._probabilities = visits[:, mine].contiguous(), probabilities[:, mine].contiguous()

    def dispatch(self, x: torch.Tensor) -> DispatchedRows:
        """Return what this rank's experts work on, from its tokens [n, h]."""
        if self._state.expert_tp_ep.size > 1:
            x = self._gather_tokens(x, self._buffer)
        counts = self._visits.sum(0).tolist() if self._nominal is None else self._nominal.by_expert
        rows, self._source = permute(x, self._visits, sum(counts), fused=self._model.moe_permute_fusion)
        self._probabilities = select_probabilities(Routing(self._probabilities, self._visits), sum(counts))
        return DispatchedRows(rows, self._probabilities, counts)

    def combine(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the sum [n, h] of what the experts made of each token, from this rank's outputs [R, h]."""
        out = unpermute(rows, self._source, self._visits.shape[0])
        if self._state.expert_tp_ep.size == 1:
            return out
        group, ranks = self._state.expert_tp_ep.group, self._state.expert_tp_ep.size
        return paired(
            out.to(self._dtype), lambda x: scatter_rows(x, group, ranks), lambda grad: gather_rows(grad, group, ranks)
        ).to(rows.dtype)

    def _gather_tokens(self, x: torch.Tensor, buffer: MemoryBuffer | None) -> torch.Tensor:
        """Return the tokens of all ranks; forward and backward in ``buffer`` if there is one."""
        group, ranks = self._state.expert_tp_ep.group, self._state.expert_tp_ep.size
        return paired(
            x,
            lambda x: gather_rows(x, group, ranks, buffer),
            lambda grad: scatter_rows(grad, group, ranks, buffer),
        )


TokenDispatcher = AlltoAllTokenDispatcher | AllGatherTokenDispatcher
"""The way of one microbatch's tokens through one layer's experts, and back."""


def token_dispatcher(
    routing: Routing, model: ModelConfig, state: ParallelState, buffer: MemoryBuffer
) -> TokenDispatcher:
    """Return how tokens of ``routing`` travel under ``moe_token_dispatcher_type``."""
    if model.moe_token_dispatcher_type == "allgather":  # noqa: S105  (no password)
        return AllGatherTokenDispatcher(routing, model, state, buffer)
    return AlltoAllTokenDispatcher(routing, model, state)
