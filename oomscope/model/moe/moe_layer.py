"""A mixture of experts in the place of the dense MLP: router, dispatch, routed experts, and experts that all share.

Megatron-Core ``moe/moe_layer.py::MoELayer``. Kept are the layer's input, what the router and the permutation keep
(``router.py``, ``permutation.py``), and of the rows that visit this rank fc1's input and output, fc2's input and the
weights (``experts.py``). Probabilities, visits and the map of the rows outlive the microbatch, until the next one
(they are attributes of Megatron-Core's dispatchers). Recomputing ``moe`` keeps the layer's input only and sends all
tokens twice; ``shared_experts`` drops their fc1's output and fc2's input.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import nn

from oomscope.config.schema import ModelConfig
from oomscope.model.base.random import ModelParallelRandom
from oomscope.model.layers.mlp import MLP
from oomscope.model.memory.recompute import checkpoint
from oomscope.model.moe.experts import GroupedExperts, SequentialExperts
from oomscope.model.moe.router import Router
from oomscope.model.moe.row_plan import ExpertParallel
from oomscope.model.moe.token_dispatcher import TokenDispatcher, token_dispatcher


class MoE(nn.Module):
    """The experts of one layer, as far as this rank holds them.

    Args:
        router: picks experts; held alike by all ranks.
        experts: this rank's.
        shared: the experts that every token visits, if any.
        model: how tokens are dispatched.
        ep: how the experts are shared out.
        recompute_modules: ``moe`` and ``shared_experts`` are handled here.
        random: the rank's random numbers.
    """

    def __init__(
        self,
        router: Router,
        experts: GroupedExperts | SequentialExperts,
        shared: MLP | None,
        *,
        model: ModelConfig,
        ep: ExpertParallel,
        recompute_modules: Collection[str],
        random: ModelParallelRandom,
    ) -> None:
        super().__init__()
        self.router = router
        self.experts = experts
        self.shared = shared
        self._model = model
        self._ep = ep
        self._recompute = "moe" in recompute_modules
        self._recompute_shared = "shared_experts" in recompute_modules
        self._random = random
        self._dispatcher: TokenDispatcher | None = None
        """The last microbatch's: what its dispatcher knows of the routing stays until the next one is dispatched."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [s/σ, b, h] from [s/σ, b, h]."""
        if self._recompute and self.training:
            return checkpoint(self._run, self._random, hidden)
        return self._run(hidden)

    def _run(self, hidden: torch.Tensor) -> torch.Tensor:
        shared = self._run_shared(hidden)
        x = hidden.reshape(-1, hidden.shape[-1])
        self._dispatcher = dispatcher = token_dispatcher(self.router(hidden), self._model, self._ep)
        out = dispatcher.combine(self.experts(*dispatcher.dispatch(x))).view(hidden.shape)
        return out if shared is None else out + shared

    def _run_shared(self, hidden: torch.Tensor) -> torch.Tensor | None:
        if self.shared is None:
            return None
        if self._recompute_shared and self.training:
            return checkpoint(self.shared, self._random, hidden)
        return self.shared(hidden)  # type: ignore[no-any-return]
