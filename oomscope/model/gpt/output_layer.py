"""The layer that makes logits of hidden states, by the rank's rows of the word table or of a matrix of its own
(Megatron-Core ``models/gpt/gpt_model.py``).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from oomscope.model.gpt.deferred_gradients import DeferredGradients
from oomscope.model.parallel.tensor_parallel import TensorParallel, column_parallel_linear


class OutputLayer(nn.Module):
    """Makes logits.

    Args:
        weight: this rank's rows [V/t, h].
        tp: how the vocabulary is split.
        deferred: what puts the weight's gradient off; None for nothing.
    """

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
        """Forget what an unfinished step has put off."""
        if self._deferred is not None:
            self._deferred.begin()

    def finish_step(self) -> None:
        """Compute what was put off, once all backward passes of the stage are done."""
        if self._deferred is not None:
            self._deferred.finish(self.weight)
