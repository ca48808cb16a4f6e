"""What the routers do when the gradients of a step are complete: raise the bias of the experts that too few tokens
visited, lower the others', and start counting anew.

Megatron-Core ``distributed/finalize_model_grads.py`` (``_update_router_expert_bias``,
``reset_model_temporary_tensors``) and ``moe/moe_utils.py::get_updated_expert_bias``; Wang et al. 2024,
arXiv:2408.15664.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import nn

from oomscope.model.moe.router import Router
from oomscope.model.parallel.parallel_state import ParallelState


def settle_routers(chunks: Iterable[nn.Module], state: ParallelState, *, rate: float) -> None:
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
