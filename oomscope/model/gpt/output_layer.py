"""The layer that makes logits of hidden states, by the rank's rows of the word table or of a matrix of its own.

Its weight gradient can be deferred until the pipeline has drained (``defer_embedding_wgrad_compute``): the last stage
computes it while the others still have backward passes to do, and until then keeps the input and the gradient of the
logits of each microbatch, or of as many as ``wgrad_deferral_limit`` says (0: of all). Source: Megatron-Core
``tensor_parallel/layers.py`` and ``utils.py``, ``drain_embedding_wgrad_compute``.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from oomscope.model.base.device import MemoryBuffer
from oomscope.model.layers.rank_context import RankContext
from oomscope.model.parallel.tensor_parallel import add_weight_gradient, all_gather_sequence, column_parallel_linear


class OutputLayer(nn.Module):
    """Makes logits by ``weight``, this rank's rows [V/t, h]."""

    def __init__(self, weight: nn.Parameter, rank: RankContext) -> None:
        super().__init__()
        parallel = rank.config.parallel
        self.weight = weight
        self._defers = parallel.defer_embedding_wgrad_compute
        self._limit = parallel.wgrad_deferral_limit
        self._inputs: deque[torch.Tensor] = deque()
        self._grads: deque[torch.Tensor] = deque()
        self._gathered = (MemoryBuffer(rank.observer), MemoryBuffer(rank.observer))
        """Memory in which inputs are gathered again under sequence parallelism."""
        self._tp = replace(rank.tp, keep_grad=partial(_keep, self._grads, self._limit)) if self._defers else rank.tp

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits [s, b, V/t] of hidden states [s/σ, b, h]."""
        if self._defers and torch.is_grad_enabled():
            _keep(self._inputs, self._limit, x)
        return column_parallel_linear(x, self.weight, None, self._tp)

    def finish_step(self) -> None:
        """Add what was put off to ``weight.main_grad``, while the next input is gathered already."""
        gathered = deque([self._gather(0)] if self._inputs else [])
        for index in range(len(self._grads)):
            if self._inputs:
                gathered.append(self._gather(index + 1))
            grad, x = self._grads.popleft(), gathered.popleft()
            main_grad: torch.Tensor = self.weight.main_grad  # type: ignore[attr-defined]
            add_weight_gradient(main_grad, grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1]))

    def _gather(self, index: int) -> torch.Tensor:
        x = self._inputs.popleft().detach()
        return all_gather_sequence(x, self._tp, self._gathered[index % 2]) if self._tp.sequence_parallel else x


def _keep(kept: deque[torch.Tensor], limit: int, tensor: torch.Tensor) -> bool:
    """Keep the input or the gradient of the logits of a microbatch, if it is one of the first; return whether it is."""
    if limit and len(kept) >= limit:
        return False
    kept.append(tensor)
    return True
