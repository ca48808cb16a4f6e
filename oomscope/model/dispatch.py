"""Sends each token to the ranks that hold its experts, and brings the results back.

Dropless, by all-to-all, as Megatron-Core ``moe/token_dispatcher.py::MoEAlltoAllTokenDispatcher`` with one rank an
expert. Rows are sorted by expert before they leave; what arrives is sorted by sender and is put together by expert.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from oomscope.model.autograd import Function
from oomscope.model.devices import computes


@dataclass(frozen=True, kw_only=True)
class ExpertParallel:
    """One rank's place in its expert-parallel group."""

    group: dist.ProcessGroup | None = None
    rank: int = 0
    size: int = 1
    imbalance: float = 1.0
    """Rows that reach this rank's experts over an even share, where routing cannot be observed."""


class Plan(NamedTuple):
    """How many rows go where."""

    sent: list[int]
    """Rows for each rank of the group."""
    received: list[list[int]]
    """Rows from each rank for each of this rank's experts."""

    @property
    def by_expert(self) -> list[int]:
        """Rows for each of this rank's experts."""
        return [sum(rows) for rows in zip(*self.received, strict=True)]


def plan(experts: torch.Tensor, num_experts: int, ep: ExpertParallel) -> Plan:
    """Return how the rows of ``experts`` [n, k] are exchanged.

    Real routing is counted and the counts exchanged. Where there is none, on a device without values or among ranks
    that are only played, each rank sends even shares and receives ``ep.imbalance`` times an even share.
    """
    if not _observes_routing(experts.device, ep):
        return _nominal_plan(experts.numel(), num_experts, ep)
    counts = torch.bincount(experts.flatten(), minlength=num_experts)
    received = counts
    if ep.size > 1:
        received = torch.empty_like(counts)
        dist.all_to_all_single(received, counts, group=ep.group)
    sent = counts.view(ep.size, -1).sum(1)
    return Plan(sent.tolist(), received.view(ep.size, -1).tolist())


def _observes_routing(device: torch.device, ep: ExpertParallel) -> bool:
    return computes(device) and (ep.group is None or dist.get_backend(ep.group) != "fake")


def _nominal_plan(rows: int, num_experts: int, ep: ExpertParallel) -> Plan:
    shares = _even(rows, num_experts)
    local = num_experts // ep.size
    sent = [sum(shares[rank * local : (rank + 1) * local]) for rank in range(ep.size)]
    return Plan(sent, [_even(received_rows(rows, ep.size, ep.imbalance), local) for _ in range(ep.size)])


def received_rows(rows: int, ep_size: int, imbalance: float) -> int:
    """Return the rows that each rank of a group sends to one rank, of the ``rows`` that it sends in all."""
    return round(rows // ep_size * imbalance) if ep_size > 1 else rows


def _even(rows: int, parts: int) -> list[int]:
    return [rows * (part + 1) // parts - rows * part // parts for part in range(parts)]


class _Permute(Function):
    """x [n, h] → a row [n·k, h] for each visit of a token to an expert."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, token_of_row: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(token_of_row)
        ctx.shape = x.shape
        return x.index_select(0, token_of_row)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (token_of_row,) = ctx.saved_tensors
        return grad.new_zeros(ctx.shape).index_add_(0, token_of_row, grad), None


class _Unpermute(Function):
    """rows [n·k, h] → their sum for each token [n, h]; the weights were applied inside the experts."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, token_of_row: torch.Tensor, tokens: int) -> torch.Tensor:
        ctx.save_for_backward(token_of_row)
        return rows.new_zeros((tokens, rows.shape[1])).index_add_(0, token_of_row, rows)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (token_of_row,) = ctx.saved_tensors
        return grad.index_select(0, token_of_row), None, None


class _AllToAll(Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup | None
    ) -> torch.Tensor:
        ctx.exchange = sent, received, group
        return _all_to_all(x, sent, received, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        sent, received, group = ctx.exchange
        return _all_to_all(grad, received, sent, group), None, None, None


def _all_to_all(x: torch.Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup | None) -> torch.Tensor:
    out = torch.empty((sum(received), *x.shape[1:]), dtype=x.dtype, device=x.device)
    dist.all_to_all_single(out, x.contiguous(), received, sent, group=group)
    return out


class _Reorder(Function):
    """Puts blocks of rows into another order."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, sizes: list[int], order: list[int]) -> torch.Tensor:
        ctx.sizes, ctx.order = sizes, order
        return _reorder(x, sizes, order)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _reorder(grad, *_inverse(ctx.sizes, ctx.order)), None, None


def _reorder(x: torch.Tensor, sizes: list[int], order: list[int]) -> torch.Tensor:
    if not computes(x.device):
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    blocks = x.split_with_sizes(sizes)
    return torch.cat([blocks[index] for index in order])


def _inverse(sizes: list[int], order: list[int]) -> tuple[list[int], list[int]]:
    """Return the sizes and the order that undo ``_reorder``."""
    back = [0] * len(order)
    for place, index in enumerate(order):
        back[index] = place
    return [sizes[index] for index in order], back


class Dispatch:
    """The journey of one microbatch's rows through one layer's experts.

    Args:
        token_of_row: the token of each row [n·k], rows sorted by expert.
        rows: how many go where.
        ep: the rank's place in its group.
    """

    def __init__(self, token_of_row: torch.Tensor, rows: Plan, ep: ExpertParallel) -> None:
        self._token_of_row = token_of_row
        self._ep = ep
        self._sent = rows.sent
        self._received = [sum(counts) for counts in rows.received]
        self._sizes = [count for counts in rows.received for count in counts]
        local = len(rows.received[0])
        self._order = [sender * local + expert for expert in range(local) for sender in range(ep.size)]
        self._sorts = ep.size > 1 and local > 1

    def there(self, x: torch.Tensor) -> torch.Tensor:
        """Return the rows [R, h] of this rank's experts, expert by expert, from its tokens [n, h]."""
        return self.carry(_Permute.apply(x, self._token_of_row))

    def carry(self, rows: torch.Tensor) -> torch.Tensor:
        """Return what the others' rows [n·k, …] bring to this rank's experts [R, …]."""
        if self._ep.size > 1:
            rows = _AllToAll.apply(rows, self._sent, self._received, self._ep.group)
        return _Reorder.apply(rows, self._sizes, self._order) if self._sorts else rows

    def back(self, rows: torch.Tensor, tokens: int) -> torch.Tensor:
        """Return the sum [n, h] of what the experts made of each token, from this rank's rows [R, h]."""
        if self._sorts:
            rows = _Reorder.apply(rows, *_inverse(self._sizes, self._order))
        if self._ep.size > 1:
            rows = _AllToAll.apply(rows, self._received, self._sent, self._ep.group)
        return _Unpermute.apply(rows, self._token_of_row, tokens)  # type: ignore[no-any-return]
