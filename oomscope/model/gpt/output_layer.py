"""The layer that makes logits of hidden states, by the rank's rows of the word table or of a matrix of its own.

Its weight gradient can be deferred until the pipeline has drained (``defer_embedding_wgrad_compute``): the last stage
computes it while the others still have backward passes to do, and until then keeps the input and the gradient of the
logits of each microbatch, or of as many as ``wgrad_deferral_limit`` says (0: of all). Source: Megatron-Core
``tensor_parallel/layers.py`` and ``utils.py``, ``drain_embedding_wgrad_compute``.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import torch
from torch import nn

from oomscope.model.base.device import MemoryBuffer
from oomscope.model.base.observer import Observer
from oomscope.model.parallel.tensor_parallel import (
    TensorParallel,
    add_weight_gradient,
    all_gather_sequence,
    column_parallel_linear,
)


class DeferredGradients:
    """What the output layer keeps of the first microbatches of a step."""

    def __init__(self, limit: int, tp: TensorParallel, observer: Observer) -> None:
        self._limit = limit
        self._tp = tp
        self._buffers = (MemoryBuffer(observer), MemoryBuffer(observer))
        self._inputs: deque[torch.Tensor] = deque()
        self._grads: deque[torch.Tensor] = deque()

    def begin(self) -> None:
        """Discard the inputs of forward passes that had no backward; called first in a step."""
        self._inputs.clear()

    def keep_input(self, x: torch.Tensor) -> None:
        """Keep a microbatch's input [s/σ, b, h], if it is one of the first."""
        if self._has_room(self._inputs):
            self._inputs.append(x)

    def keep_grad(self, grad: torch.Tensor) -> bool:
        """Keep a microbatch's gradient of the logits [s, b, V/t], if it is one of the first; return whether it is."""
        if not self._has_room(self._grads):
            return False
        self._grads.append(grad)
        return True

    def finish(self, weight: torch.Tensor) -> None:
        """Add what was put off to ``weight.main_grad``, while the next input is gathered already."""
        gathered = deque([self._gather(0)] if self._inputs else [])
        for index in range(len(self._grads)):
            if self._inputs:
                gathered.append(self._gather(index + 1))
            grad, x = self._grads.popleft(), gathered.popleft()
            main_grad: torch.Tensor = weight.main_grad  # type: ignore[attr-defined]
            add_weight_gradient(main_grad, grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1]))

    def _gather(self, index: int) -> torch.Tensor:
        x = self._inputs.popleft().detach()
        return all_gather_sequence(x, self._tp, self._buffers[index % 2]) if self._tp.sequence_parallel else x

    def _has_room(self, kept: deque[torch.Tensor]) -> bool:
        return self._limit == 0 or len(kept) < self._limit


class OutputLayer(nn.Module):
    """Makes logits; ``deferred`` puts its weight's gradient off."""

    def __init__(self, weight: nn.Parameter, tp: TensorParallel, deferred: DeferredGradients | None = None) -> None:
        super().__init__()
        self.weight = weight
        self._tp = tp if deferred is None else replace(tp, keep_grad=deferred.keep_grad)
        self._deferred = deferred

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits [s, b, V/t] of hidden states [s/σ, b, h]."""
        if self._deferred is not None and torch.is_grad_enabled():
            self._deferred.keep_input(x)
        return column_parallel_linear(x, self.weight, None, self._tp)

    def begin_step(self) -> None:
        """Discard what an unfinished step has deferred."""
        if self._deferred is not None:
            self._deferred.begin()

    def finish_step(self) -> None:
        """Compute what was put off, once all backward passes of the stage are done."""
        if self._deferred is not None:
            self._deferred.finish(self.weight)
