"""A mixture of experts in the place of the dense MLP: router, dispatch, routed experts, and experts that all share.

Megatron-Core ``moe/moe_layer.py::MoELayer``. Probabilities, visits and the map of the rows outlive the microbatch,
until the next one (they are attributes of Megatron-Core's dispatchers).
"""

from __future__ import annotations

import torch
from torch import nn

from oomscope.model.layers.mlp import MLP
from oomscope.model.layers.rank_context import RankContext
from oomscope.model.memory.recompute import checkpoint
from oomscope.model.moe.experts import make_experts
from oomscope.model.moe.router import Router, balance_of
from oomscope.model.moe.token_dispatcher import TokenDispatcher, token_dispatcher


class MoE(nn.Module):
    """The experts of one layer, as far as this rank holds them.

    Its losses count once however often it ``runs`` in a microbatch (Megatron-Core ``moe/router.py``).
    """

    def __init__(self, rank: RankContext, name: str, *, runs: int = 1) -> None:
        super().__init__()
        config, model, state = rank.config, rank.config.model, rank.state
        experts, shared = model.num_moe_experts or 1, model.moe_shared_expert_intermediate_size
        router = rank.whole(f"{name}.router", experts, model.hidden_size, sequence_parallel=True)
        self.router = Router(router, model, balance_of(config, state, runs=runs))
        self.experts = make_experts(rank, name)
        self.shared = None if shared is None else MLP(rank, f"{name}.shared", shared)
        self._rank = rank
        self._recompute = "moe" in config.recompute_modules
        self._recompute_shared = "shared_experts" in config.recompute_modules
        self._dispatcher: TokenDispatcher | None = None
        """The last microbatch's: what its dispatcher knows of the routing stays until the next one is dispatched."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [s/σ, b, h] from [s/σ, b, h]."""
        if self._recompute and self.training:
            return checkpoint(self._run, self._rank.random, hidden)
        return self._run(hidden)

    def _run(self, hidden: torch.Tensor) -> torch.Tensor:
        shared = self._run_shared(hidden)
        x = hidden.reshape(-1, hidden.shape[-1])
        self._dispatcher = dispatcher = token_dispatcher(
            self.router(hidden), self._rank.config.model, self._rank.state, self._rank.scratch
        )
        out = dispatcher.combine(self.experts(*dispatcher.dispatch(x))).view(hidden.shape)
        return out if shared is None else out + shared

    def _run_shared(self, hidden: torch.Tensor) -> torch.Tensor | None:
        if self.shared is None:
            return None
        if self._recompute_shared and self.training:
            return checkpoint(self.shared, self._rank.random, hidden)
        return self.shared(hidden)  # type: ignore[no-any-return]
