"""Scores every token against every expert, picks the best k, and balances the choice.

What autograd keeps follows from Megatron-Core's own sequence of operations (``moe/router.py::TopKRouter``,
``moe/moe_utils.py``), so most of it is written in plain torch: the indices of the chosen, their softmax, and with
balancing losses the scores of all experts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from oomscope.config.schema import ModelConfig
from oomscope.model.autograd import Function


class Routing(NamedTuple):
    """Which experts a token visits, and how much each counts."""

    probabilities: torch.Tensor
    """[n, E]; zero for experts that are not visited."""
    visits: torch.Tensor
    """Boolean [n, E]."""


@dataclass(frozen=True, kw_only=True)
class Balance:
    """The losses that keep the router balanced, and the ranks that share a sequence's tokens."""

    aux_loss_coeff: float = 0.0
    z_loss_coeff: float = 0.0
    groups: tuple[dist.ProcessGroup, ...] = ()
    ranks: int = 1
    """Ranks of all ``groups`` together."""
    scale: float = 1.0
    """Of the gradients of these losses, beside a training loss that is divided by the number of microbatches."""


def capacity(tokens: int, model: ModelConfig) -> int | None:
    """Return the rows that an expert takes of ``tokens``: ceil(n·k/E · factor), None where it takes all.

    Source: Megatron-Core ``moe/moe_utils.py::get_capacity``.
    """
    if model.moe_expert_capacity_factor is None or model.num_moe_experts is None:
        return None
    return math.ceil(tokens * model.moe_router_topk / model.num_moe_experts * model.moe_expert_capacity_factor)


def router_dtype(model: ModelConfig, dtype: torch.dtype) -> torch.dtype:
    """Return the number format of logits and probabilities in a model of ``dtype``."""
    named = {"fp32": torch.float32, "fp64": torch.float64}
    return dtype if model.moe_router_dtype is None else named[model.moe_router_dtype]


class _Gating(Function):
    """x [n, h], weight [E, h] → logits [n, E] in the router's format; keeps x and the weight in their own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x.to(dtype).mm(weight.to(dtype).t())

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, weight = ctx.saved_tensors
        grad_x = grad.mm(weight.to(grad.dtype)).to(x.dtype)
        return grad_x, grad.t().mm(x.to(grad.dtype)).to(weight.dtype), None


class _WithLoss(Function):
    """Returns x; in backward ``loss`` is differentiated at ``scale`` (Megatron-Core ``MoEAuxLossAutoScaler``)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, loss: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.loss = loss.dtype, loss.device, scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        dtype, device, scale = ctx.loss
        return grad, torch.full((), scale, dtype=dtype, device=device), None


class Router(nn.Module):
    """Picks k experts for a token; the softmax of their scores weighs what they return.

    Memory, for n tokens and E experts: indices 8·n·k; the softmax in fp32, 4·n·k, or 4·n·E with
    ``moe_router_pre_softmax``; the fp32 scores of all experts, 4·n·E, with ``moe_aux_loss_coeff``; logits and their
    log-sum-exp with ``moe_z_loss_coeff``; a mask, n·E, with a capacity.

    Args:
        weight: [E, h], held alike by all ranks.
        model: top-k, number format, capacity.
        balance: the balancing losses.
    """

    def __init__(self, weight: nn.Parameter, model: ModelConfig, balance: Balance) -> None:
        super().__init__()
        self.weight = weight
        self._model = model
        self._balance = balance

    def forward(self, x: torch.Tensor) -> Routing:
        """Return the routing of the tokens ``x`` [n, h]."""
        logits = _Gating.apply(x, self.weight, router_dtype(self._model, x.dtype))
        if self._balance.z_loss_coeff:
            loss = torch.logsumexp(logits, dim=-1).square().mean() * (self._balance.z_loss_coeff / self._balance.ranks)
            logits = _WithLoss.apply(logits, loss, self._balance.scale)
        chosen, experts = self._choose(logits)
        probabilities = torch.zeros_like(logits).scatter(1, experts, chosen)
        visits = torch.zeros_like(logits).int().scatter(1, experts, 1).bool()
        if self._balance.aux_loss_coeff:
            loss = self._balancing_loss(torch.softmax(logits, dim=-1, dtype=torch.float32), visits)
            probabilities = _WithLoss.apply(probabilities, loss, self._balance.scale)
        limit = capacity(x.shape[0], self._model)
        return Routing(probabilities, visits) if limit is None else self._drop(probabilities, visits, limit)

    def _choose(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return probabilities and experts, [n, k]."""
        if self._model.moe_router_pre_softmax:
            chosen, experts = torch.softmax(logits, dim=-1, dtype=torch.float32).topk(self._model.moe_router_topk)
        else:
            scores, experts = logits.topk(self._model.moe_router_topk)
            chosen = torch.softmax(scores, dim=-1, dtype=torch.float32)
        return chosen.type_as(logits), experts

    def _balancing_loss(self, scores: torch.Tensor, visits: torch.Tensor) -> torch.Tensor:
        """Return E · Σ (share of visits · mean score) over the experts (Fedus et al. 2021, equation 4)."""
        tokens, experts = scores.shape[0] * self._balance.ranks, scores.shape[1]
        counts = visits.sum(0)
        for group in self._balance.groups:
            dist.all_reduce(counts, group=group)
        factor = experts * self._balance.aux_loss_coeff / (self._model.moe_router_topk * tokens * tokens)
        return (scores.sum(0) * counts).sum() * factor

    def _drop(self, probabilities: torch.Tensor, visits: torch.Tensor, limit: int) -> Routing:
        """Leave each expert its ``limit`` most probable tokens, and those only (or fill up with others)."""
        if limit > probabilities.shape[0]:
            kept = torch.ones_like(probabilities).bool()
        else:
            best = probabilities.detach().topk(limit, dim=0, sorted=False).indices
            kept = torch.zeros_like(probabilities).scatter(0, best, 1).bool()
        if not self._model.moe_pad_expert_input_to_capacity:
            kept = visits.logical_and(kept)
        return Routing(probabilities * kept, kept)
