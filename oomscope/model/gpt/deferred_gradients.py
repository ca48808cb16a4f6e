"""The output layer's weight gradient, put off until the pipeline has drained (``defer_embedding_wgrad_compute``).

The last stage has this product over the vocabulary to compute while the others wait for it. Put off, it is computed
while they still have backward passes to do; until then the input and the gradient of the logits of each microbatch
are kept, 2nh/σ + 2nV/t bytes, of as many as ``wgrad_deferral_limit`` says (0: of all).

Source: Megatron-Core ``tensor_parallel/layers.py`` and ``utils.py``, ``drain_embedding_wgrad_compute``.
"""

from __future__ import annotations

from collections import deque

import torch

from oomscope.model.base.memory_buffer import MemoryBuffer
from oomscope.model.base.observer import Observer
from oomscope.model.parallel.tensor_parallel import TensorParallel, all_gather_sequence
from oomscope.model.parallel.weight_gradients import add_weight_gradient


class DeferredGradients:
    """What the output layer keeps of the first microbatches of a step.

    Args:
        limit: microbatches, 0 for all.
        tp: how the layer is split; under sequence parallelism inputs [s/t, b, h] are gathered again at the end.
        observer: is told of the memory that they are gathered into, two buffers that stay.
    """

    def __init__(self, limit: int, tp: TensorParallel, observer: Observer) -> None:
        self._limit = limit
        self._tp = tp
        self._buffers = (MemoryBuffer(observer), MemoryBuffer(observer))
        self._inputs: deque[torch.Tensor] = deque()
        self._grads: deque[torch.Tensor] = deque()

    def begin(self) -> None:
        """Forget the inputs of forward passes that had no backward; the first thing of a step."""
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
