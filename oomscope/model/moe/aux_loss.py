"""The losses that draw a router towards even loads (of a microbatch, of each sequence, of the global batch), and
ST-MoE's z-loss.

One formula serves the three: E · Σ (share of visits · mean score) over the experts, where the visits are counted over
more or fewer tokens (Fedus et al. 2021, equation 4; DeepSeek-V2, equation 12; Qiu et al. 2025, arXiv:2501.11873).
Megatron-Core ``moe/moe_utils.py``, ``switch_load_balancing_loss_func``, ``compute_routing_scores_for_aux_loss`` and
``z_loss_func``; ``moe/router.py``, ``_apply_aux_loss``, ``_apply_seq_aux_loss``, ``_apply_global_aux_loss``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from oomscope.config.schema import Config, ModelConfig
from oomscope.model.base.operations import Function
from oomscope.model.moe.routing import normalized_sigmoid, visits_of
from oomscope.model.parallel.parallel_state import ParallelState


@dataclass(frozen=True, kw_only=True)
class Balance:
    """The losses that keep the router balanced, and the ranks whose tokens are counted together."""

    aux_loss_coeff: float = 0.0
    z_loss_coeff: float = 0.0
    groups: tuple[dist.ProcessGroup, ...] = ()
    """Ranks that share a sequence's tokens; for the loss of the global batch also the replicas."""
    ranks: int = 1
    """Ranks of all ``groups`` together."""
    sharers: int = 1
    """Ranks that share a sequence's tokens."""
    scale: float = 1.0
    """Of the gradients of these losses, beside a training loss that is divided by the number of microbatches."""


def balance_of(config: Config, state: ParallelState, *, runs: int = 1) -> Balance:
    """Return the losses of a router that runs ``runs`` times in a microbatch.

    Gradients become the mean over CP ranks, and so are scaled by their number.

    Source: Megatron-Core ``pipeline_parallel/schedules.py`` (the scale), ``moe/router.py`` (the groups).
    """
    is_global = config.model.moe_router_load_balancing_type == "global_aux_loss"
    is_split = config.parallel.sequence_parallel
    sharers = (state.tp_size if is_split else 1) * state.cp_size
    groups = (state.tp_group if is_split else None, state.cp_group, state.dp_group if is_global else None)
    return Balance(
        aux_loss_coeff=config.aux_loss_coeff / runs,
        z_loss_coeff=config.model.moe_z_loss_coeff or 0.0,
        groups=tuple(group for group in groups if group is not None),
        ranks=sharers * (state.dp_size if is_global else 1),
        sharers=sharers,
        scale=state.cp_size / config.num_microbatches,
    )


def scores_of_all(logits: torch.Tensor, model: ModelConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scores of all experts in fp32 [n, E], and the visits that they alone would choose."""
    if model.moe_router_score_function == "softmax":
        scores = torch.softmax(logits, dim=-1, dtype=torch.float32)
    else:
        scores = normalized_sigmoid(logits)
    return scores, visits_of(logits, scores.detach().topk(model.moe_router_topk, dim=1).indices)


def count_visits(visits: torch.Tensor, sequences: int, groups: Sequence[dist.ProcessGroup]) -> torch.Tensor:
    """Return the visits of each expert, int64 [E], of each sequence apart where there are several, over all ``groups``.

    Args:
        visits: boolean [s·b, E], the sequence slowest.
        sequences: b, or 1 to count all tokens together.
        groups: summed over.
    """
    counts = visits.reshape(visits.shape[0] // sequences, -1).sum(dim=0)
    for group in groups:
        dist.all_reduce(counts, group=group)
    return counts


def balancing_loss(
    scores: torch.Tensor, counts: torch.Tensor, model: ModelConfig, balance: Balance, *, sequences: int
) -> torch.Tensor:
    """Return the loss of ``scores`` [s·b, E] with the visits ``counts`` [E] or, by sequences, [b·E]; their mean."""
    rows, experts = scores.shape[0] // sequences, scores.shape[1]
    tokens = rows * balance.ranks
    factor = experts * balance.aux_loss_coeff / (model.moe_router_topk * tokens * tokens * sequences)
    return (scores.reshape(rows, -1).sum(dim=0) * counts).sum() * factor


def z_loss(logits: torch.Tensor, balance: Balance) -> torch.Tensor:
    """Return the mean squared log-sum-exp of the logits, weighted (Zoph et al. 2022, equation 5)."""
    return torch.logsumexp(logits, dim=-1).square().mean() * (balance.z_loss_coeff / balance.sharers)


class LossAutoScaler(Function):
    """Returns x; in backward each element of ``loss`` is differentiated at ``scale``.

    Megatron-Core ``MoEAuxLossAutoScaler`` and ``MTPLossAutoScaler``.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, loss: torch.Tensor, scale: float) -> torch.Tensor:
        """Remember what the gradient of ``loss`` looks like."""
        ctx.loss = loss.shape, loss.dtype, loss.device, scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Pass the gradient on, and send ``scale`` into the loss."""
        shape, dtype, device, scale = ctx.loss
        return grad, torch.full(shape, scale, dtype=dtype, device=device), None
