"""Stochastic gradient descent with momentum in one fused kernel a call: no temporaries, one state a parameter.

``torch.optim.SGD(fused=True)`` runs the same kernel, which knows no device without values; here only its states are
made there (Megatron-Core trains with the FusedSGD of Apex or Transformer Engine).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from oomscope.model.base.devices import computes
from oomscope.model.optimizer.adam import GroupedOptimizer


class FusedSGD(GroupedOptimizer):
    """SGD on fp32 tensors; ``momentum_buffer`` is made in the first step, and not at all without momentum.

    Args:
        params: tensors or groups of them, all on one device, with their gradients in ``.grad``; a group may have a
            ``weight_decay``, which is added to the gradient.
        lr: learning rate.
        momentum: decay of the running gradient.
    """

    def __init__(
        self, params: Iterable[torch.Tensor] | Iterable[dict[str, Any]], *, lr: float, momentum: float
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": 0.0})

    def _step_group(self, group: dict[str, Any]) -> None:
        params = [param for param in group["params"] if param.grad is not None]
        if not params:
            return
        if group["momentum"] != 0:
            for param in params:
                if not self.state[param]:
                    self.state[param]["momentum_buffer"] = torch.zeros_like(param)
        if not computes(params[0].device):
            return
        torch._fused_sgd_(
            params,
            [param.grad for param in params],
            [self.state[param]["momentum_buffer"] for param in params] if group["momentum"] != 0 else [],
            weight_decay=group["weight_decay"],
            momentum=group["momentum"],
            lr=group["lr"],
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,  # the buffers begin as zeros
        )
