"""Which experts a token visits, and what each visit weighs: top-k of scores, or sinkhorn's even shares.

The operations are those of Megatron-Core (``moe/moe_utils.py``, ``topk_routing_with_score_function``,
``group_limited_topk``, ``sinkhorn``; ``moe/router.py``, ``sinkhorn_load_balancing``), in their order, since autograd
keeps what they keep.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from oomscope.config.schema import ModelConfig
from oomscope.model.base.device import computes

_NO_ZERO_SUM = 1e-20
"""Added to the sum that sigmoid scores are divided by."""
_SINKHORN_TOLERANCE = 1e-4
_SINKHORN_NO_ZERO = 1e-8
_SINKHORN_ROUNDS_WITHOUT_VALUES = 2
"""Rounds where nothing is computed: the second one holds as much as every later one."""


class Routing(NamedTuple):
    """Which experts a token visits, and how much each counts."""

    probabilities: torch.Tensor
    """[n, E]; zero for experts that are not visited."""
    visits: torch.Tensor
    """Boolean [n, E]."""


def choose(logits: torch.Tensor, model: ModelConfig, bias: torch.Tensor | None, *, training: bool) -> Routing:
    """Return the routing of n tokens by their ``logits`` [n, E]."""
    if model.moe_router_load_balancing_type == "sinkhorn":
        return _by_sinkhorn(logits, model, training=training)
    weights, experts = _weigh(logits, model, bias)
    if model.moe_router_topk_scaling_factor:
        weights = weights * model.moe_router_topk_scaling_factor
    probabilities = torch.zeros_like(logits).scatter(1, experts, weights.type_as(logits))
    return Routing(probabilities, visits_of(logits, experts))


def visits_of(logits: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    """Return as booleans [n, E], shaped as ``logits``, which ``experts`` [n, k] are named."""
    return torch.zeros_like(logits).int().scatter(1, experts, 1).bool()


def normalized_sigmoid(logits: torch.Tensor) -> torch.Tensor:
    """Return the sigmoids of all experts in fp32 [n, E], divided by their sum over a token."""
    return _over_sum(torch.sigmoid(logits.float()))


def _weigh(logits: torch.Tensor, model: ModelConfig, bias: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weights in fp32 and experts, [n, k]."""
    if model.moe_router_score_function == "softmax":
        if model.moe_router_pre_softmax:
            return _top(torch.softmax(logits, dim=-1, dtype=torch.float32), model)
        scores, experts = _top(logits, model)
        return torch.softmax(scores, dim=-1, dtype=torch.float32), experts
    scores = torch.sigmoid(logits.float())
    if bias is None:
        scores, experts = _top(scores, model)
    else:
        experts = _top(scores.detach() + bias, model)[1]
        scores = scores.gather(1, experts)
    return (_over_sum(scores) if model.moe_router_topk > 1 else scores), experts


def _over_sum(scores: torch.Tensor) -> torch.Tensor:
    return scores / (scores.sum(dim=-1, keepdim=True) + _NO_ZERO_SUM)


def _top(scores: torch.Tensor, model: ModelConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the k highest of ``scores`` [n, E] and their experts; only of the best groups where these are limited."""
    k, groups, best = model.moe_router_topk, model.moe_router_num_groups, model.moe_router_group_topk
    if best is None or groups is None:
        highest = scores.topk(k, dim=1)
    else:
        n, experts = scores.shape
        of_group = scores.detach().view(n, groups, -1).topk(k // best, dim=-1).values.sum(dim=-1)
        chosen = torch.zeros_like(of_group).scatter_(1, of_group.topk(best, dim=-1, sorted=False).indices, 1)
        allowed = chosen.unsqueeze(-1).expand(n, groups, experts // groups).reshape(n, -1)
        highest = scores.masked_fill(~allowed.bool(), -torch.inf).topk(k, dim=-1)
    return highest.values, highest.indices


def _by_sinkhorn(logits: torch.Tensor, model: ModelConfig, *, training: bool) -> Routing:
    """The even shares decide, the plain scores weigh: sigmoids of a single expert, else the softmax over all."""
    if training:
        with torch.no_grad():
            experts = even_shares(logits.to(dtype=torch.float32)).topk(model.moe_router_topk, dim=1).indices
        scores = _sinkhorn_scores(logits, model)
    else:
        scores = _sinkhorn_scores(logits, model)
        experts = scores.topk(model.moe_router_topk, dim=1).indices
    visits = visits_of(scores, experts)
    return Routing(scores * visits, visits)


def _sinkhorn_scores(logits: torch.Tensor, model: ModelConfig) -> torch.Tensor:
    if model.moe_router_topk == 1:
        return torch.sigmoid(logits)
    return torch.softmax(logits, dim=-1, dtype=torch.float32).type_as(logits)


def even_shares(logits: torch.Tensor) -> torch.Tensor:
    """Return exp(logits) [n, E] with rows and columns scaled in turn until every token and every expert has its share.

    Rows sum to about 1/n and columns to 1/E (Sinkhorn and Knopp 1967).
    """
    cost = logits.exp()
    of_token, of_expert = cost.new_ones(cost.shape[0]), cost.new_ones(cost.shape[1])
    rounds, before = 0, of_expert
    while True:
        of_token = 1 / of_token.shape[0] / ((of_expert * cost).sum(1) + _SINKHORN_NO_ZERO)
        of_expert = 1 / of_expert.shape[0] / ((of_token.unsqueeze(1) * cost).sum(0) + _SINKHORN_NO_ZERO)
        change, before, rounds = (before - of_expert).abs().mean(), of_expert, rounds + 1
        is_even = change <= _SINKHORN_TOLERANCE if computes(cost.device) else rounds == _SINKHORN_ROUNDS_WITHOUT_VALUES
        if is_even:
            return of_expert * cost * of_token.unsqueeze(1)


def drop(routing: Routing, model: ModelConfig, limit: int) -> Routing:
    """Leave each expert ``limit`` of its tokens, or fill it up with others where the model pads.

    Kept are the most probable (``moe_token_drop_policy: probs``), or some ``limit`` of those routed to it
    (``position``). Autograd keeps the boolean mask, [n, E].
    """
    probabilities, visits = routing
    if limit > probabilities.shape[0]:
        taken = torch.ones_like(probabilities).bool()
    else:
        by_position = model.moe_token_drop_policy == "position"  # noqa: S105
        worth = visits.int() if by_position else probabilities.detach()
        best = worth.topk(limit, dim=0, sorted=False).indices
        taken = torch.zeros_like(probabilities).scatter(0, best, 1).bool()
    if not model.moe_pad_expert_input_to_capacity:
        taken = visits.logical_and(taken)
    return Routing(probabilities * taken, taken)


def capacity(tokens: int, model: ModelConfig) -> int | None:
    """Return the rows that an expert takes of ``tokens``: ceil(n·k/E · factor), None where it takes all.

    Source: Megatron-Core ``moe/moe_utils.py::get_capacity``.
    """
    if model.moe_expert_capacity_factor is None or model.num_moe_experts is None:
        return None
    return math.ceil(tokens * model.moe_router_topk / model.num_moe_experts * model.moe_expert_capacity_factor)
