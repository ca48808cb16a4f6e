"""How many rows of tokens go to which rank that shares the experts, and how many an expert takes: arithmetic alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from oomscope.config.schema import ModelConfig

if TYPE_CHECKING:
    import torch.distributed as dist

    from oomscope.model.base.device import MemoryBuffer


@dataclass(frozen=True, kw_only=True)
class ExpertParallel:
    """One rank's place among those that share the experts of a layer."""

    group: dist.ProcessGroup | None = None
    rank: int = 0
    size: int = 1
    tp_group: dist.ProcessGroup | None = None
    """Ranks that hold parts of the same experts."""
    tp_rank: int = 0
    tp_size: int = 1
    tp_ep_group: dist.ProcessGroup | None = None
    """Both together, expert TP fastest."""
    buffer: MemoryBuffer | None = None
    """Where ``allgather`` brings all tokens of the group; None brings them into fresh memory."""
    imbalance: float = 1.0
    """Rows that reach this rank's experts over an even share, where routing cannot be observed."""

    @property
    def ranks(self) -> int:
        """Ranks of ``tp_ep_group``."""
        return self.size * self.tp_size


class Plan(NamedTuple):
    """How many rows go where."""

    sent: list[int]
    """Rows for each rank of the expert-parallel group."""
    received: list[list[int]]
    """Rows from each rank of ``tp_ep_group`` for each of this rank's experts; senders with expert TP slowest."""

    @property
    def by_expert(self) -> list[int]:
        """Rows for each of this rank's experts."""
        return [sum(rows) for rows in zip(*self.received, strict=True)]


def nominal_plan(tokens: int, model: ModelConfig, ep: ExpertParallel) -> Plan:
    """Return the exchange of the rows of ``tokens`` on each rank under even routing, times ``ep.imbalance``.

    An expert takes at most its capacity of each rank's tokens, and each token once.
    """
    num_experts, rows = model.num_moe_experts or 1, tokens * model.moe_router_topk
    local = num_experts // ep.size
    limit = min(tokens, capacity(tokens, model) or tokens)
    if is_padded(model):
        return Plan([limit * local] * ep.size, [[limit] * local] * ep.ranks)
    shares = [min(share, limit) for share in _even(rows, num_experts)]
    sent = [sum(shares[rank * local : (rank + 1) * local]) for rank in range(ep.size)]
    arriving = [min(share, limit) for share in _even(received_rows(rows, ep.size, ep.imbalance), local)]
    return Plan(sent, [arriving] * ep.ranks)


def is_padded(model: ModelConfig) -> bool:
    """Whether every expert gets its capacity, so that no size depends on the routing."""
    return model.moe_pad_expert_input_to_capacity and model.moe_expert_capacity_factor is not None


def received_rows(rows: int, ep_size: int, imbalance: float) -> int:
    """Return the rows that each rank of a group sends to one rank, of the ``rows`` that it sends in all."""
    return round(rows // ep_size * imbalance) if ep_size > 1 else rows


def _even(rows: int, parts: int) -> list[int]:
    return [rows * (part + 1) // parts - rows * part // parts for part in range(parts)]


def capacity(tokens: int, model: ModelConfig) -> int | None:
    """Return the rows that an expert takes of ``tokens``: ceil(n·k/E · factor), None where it takes all.

    Source: Megatron-Core ``moe/moe_utils.py::get_capacity``.
    """
    if model.moe_expert_capacity_factor is None or model.num_moe_experts is None:
        return None
    return math.ceil(tokens * model.moe_router_topk / model.num_moe_experts * model.moe_expert_capacity_factor)
