"""How many rows an expert takes of a rank's tokens, and which it leaves where more would come.

Megatron-Core ``moe_utils.py``: ``get_capacity``, ``apply_router_token_dropping``.
"""

from __future__ import annotations

import torch

from oomscope.config.schema import ModelConfig
from oomscope.model.moe.routing import Routing


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
