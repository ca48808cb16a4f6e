"""Scores every token against every expert, chooses, drops, and balances: the order of Megatron-Core's ``TopKRouter``.

What autograd keeps follows from upstream's own sequence of operations (``moe/router.py``), so most of it is written in
plain torch (``routing.py``, ``aux_loss.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from oomscope.config.schema import ModelConfig
from oomscope.model.base.operations import Function
from oomscope.model.moe.aux_loss import Balance, LossAutoScaler, balancing_loss, count_visits, scores_of_all, z_loss
from oomscope.model.moe.routing import Routing, choose, drop
from oomscope.model.moe.row_plan import capacity
from oomscope.model.parallel.parallel_state import ParallelState


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


class Router(nn.Module):
    """Picks k experts for a token, and weighs what they return.

    Memory, for n tokens and E experts, beside indices of 8·n·k: the softmax in fp32, 4·n·k, or 4·n·E with
    ``moe_router_pre_softmax``; with sigmoid 4·n·E and, of the chosen, 4·n·(k + 1); a mask, n·E, with limited groups;
    the fp32 scores of all experts, 4·n·E, with a balancing loss; logits and their log-sum-exp with
    ``moe_z_loss_coeff``; a mask, n·E, with a capacity. Tests hold each row (``tests/ledgers/layer.py``).

    Over the whole run: with ``moe_router_enable_expert_bias`` a bias and a count for each expert, and with
    ``global_aux_loss`` a count, in fp32.

    Args:
        weight: [E, h], held alike by all ranks.
        model: top-k, score function, number format, capacity.
        balance: the balancing losses.
    """

    expert_bias: torch.Tensor | None
    visits_of_step: torch.Tensor | None
    """fp32 [E]: visits since the last step, for the bias."""
    visits_of_batch: torch.Tensor | None
    """fp32 [E]: visits of all ranks since the last step, for the loss of the global batch."""
    microbatches: torch.Tensor | None
    """fp32 []: how many of them ``visits_of_batch`` adds up."""

    def __init__(self, weight: nn.Parameter, model: ModelConfig, balance: Balance) -> None:
        super().__init__()
        self.weight = weight
        self._model = model
        self._balance = balance
        experts = weight.shape[0]
        is_biased = model.moe_router_enable_expert_bias
        is_global = balance.aux_loss_coeff > 0 and model.moe_router_load_balancing_type == "global_aux_loss"
        self._register("visits_of_step", (experts,) if is_biased else None)
        self._register("expert_bias", (experts,) if is_biased else None)
        self._register("visits_of_batch", (experts,) if is_global else None)
        self._register("microbatches", () if is_global else None)

    def _register(self, name: str, shape: tuple[int, ...] | None) -> None:
        zeros = None if shape is None else torch.zeros(shape, dtype=torch.float32, device=self.weight.device)
        self.register_buffer(name, zeros, persistent=name == "expert_bias")

    def forward(self, hidden: torch.Tensor) -> Routing:
        """Return the routing of the tokens of ``hidden`` [s/σ, b, h], taken as [n, h]."""
        sequences = hidden.shape[-2]
        x = hidden.reshape(-1, hidden.shape[-1])
        learns = self.training and torch.is_grad_enabled()
        logits = _Gating.apply(x, self.weight, router_dtype(self._model, x.dtype))
        if learns and self._balance.z_loss_coeff:
            logits = LossAutoScaler.apply(logits, z_loss(logits, self._balance), self._balance.scale)
        routing = choose(logits, self._model, self.expert_bias, training=self.training)
        limit = capacity(x.shape[0], self._model)
        if limit is not None:
            routing = drop(routing, self._model, limit)
        if learns and self._balance.aux_loss_coeff:
            loss = self._balancing_loss(logits, sequences)
            routing = routing._replace(
                probabilities=LossAutoScaler.apply(routing.probabilities, loss, self._balance.scale)
            )
        if self.visits_of_step is not None and torch.is_grad_enabled():
            self.visits_of_step += routing.visits.sum(dim=0)
        return routing

    def start_batch(self) -> None:
        """Reset the visits of the step that has ended (Megatron-Core ``reset_model_temporary_tensors``)."""
        for counts in (self.visits_of_step, self.visits_of_batch, self.microbatches):
            if counts is not None:
                counts.zero_()

    def _balancing_loss(self, logits: torch.Tensor, sequences: int) -> torch.Tensor:
        apart = sequences if self._model.moe_router_load_balancing_type == "seq_aux_loss" else 1
        scores, visits = scores_of_all(logits, self._model)
        counts = count_visits(visits, apart, self._balance.groups)
        if self.visits_of_batch is not None and self.microbatches is not None:
            self.visits_of_batch += counts
            self.microbatches += 1
            counts = self.visits_of_batch / self.microbatches
        return balancing_loss(scores, counts, self._model, self._balance, sequences=apart)


def update_expert_bias(chunks: Iterable[nn.Module], state: ParallelState, *, rate: float) -> None:
    """Move the biases of all routers in ``chunks`` by ``rate``, and let them count anew.

    Args:
        chunks: model chunks of this rank.
        state: visits are summed over its TP, CP and DP ranks.
        rate: ``moe_router_bias_update_rate``.
    """
    routers = [module for chunk in chunks for module in chunk.modules() if isinstance(module, Router)]
    _move_biases([router for router in routers if router.expert_bias is not None and router.training], state, rate)
    for router in routers:
        router.start_batch()


@torch.no_grad()
def _move_biases(routers: Sequence[Router], state: ParallelState, rate: float) -> None:
    if not routers:
        return
    visits = torch.stack([counts for router in routers if (counts := router.visits_of_step) is not None])
    biases = [bias for router in routers if (bias := router.expert_bias) is not None]
    stacked = torch.stack(biases)
    for group in (state.tp_group, state.dp_cp_group):
        if group is not None:
            dist.all_reduce(visits, group=group)
    missing = visits.sum(dim=-1, keepdim=True) / visits.shape[-1] - visits
    for bias, moved in zip(biases, stacked + torch.sign(missing) * rate, strict=True):
        bias.copy_(moved)
