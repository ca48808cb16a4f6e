"""Adam and SGD in one fused kernel a call: no temporaries, two states or one a parameter, one step count a group.

Megatron-Core trains with the FusedAdam and FusedSGD of Apex or Transformer Engine, whose multi-tensor kernels update
parameters and states in place. ``torch.optim.AdamW(fused=True)`` runs the same kind of kernel, but keeps a step count
of its own for each parameter, a 512-byte block apiece on the device; FusedAdam keeps one a group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch.optim import Optimizer


class GroupedOptimizer(Optimizer):
    """An optimizer that updates one group of parameters after the other, in place."""

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update all parameters in place; ``closure`` is evaluated first, with gradients, if given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._step_group(group)
        return loss

    def _step_group(self, group: dict[str, Any]) -> None:
        raise NotImplementedError


class FusedAdam(GroupedOptimizer):
    """AdamW on fp32 tensors; ``exp_avg`` and ``exp_avg_sq`` are made in the first step, as upstream.

    Args:
        params: tensors or groups of them, all on one device, with their gradients in ``.grad``.
        lr: learning rate.
        betas: decay of the first and second moment.
        eps: added to the root of the second moment.
        weight_decay: decoupled weight decay.
        computes: False where values are of no account: then states are made and nothing is written into them.
    """

    def __init__(
        self,
        params: Iterable[torch.Tensor] | Iterable[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        computes: bool = True,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self._computes = computes

    def _step_group(self, group: dict[str, Any]) -> None:
        params = [param for param in group["params"] if param.grad is not None]
        if not params:
            return
        states = [self._moments(param) for param in params]
        if not self._computes:
            return
        beta1, beta2 = group["betas"]
        torch._fused_adamw_(
            params,
            [param.grad for param in params],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [self._count(group, params[0].device)] * len(params),
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )

    def _moments(self, param: torch.Tensor) -> dict[str, torch.Tensor]:
        state: dict[str, torch.Tensor] = self.state[param]
        if not state:
            new = torch.zeros_like if self._computes else torch.empty_like
            state["exp_avg"] = new(param)
            state["exp_avg_sq"] = new(param)
        return state

    @staticmethod
    def _count(group: dict[str, Any], device: torch.device) -> torch.Tensor:
        if "step" not in group:
            group["step"] = torch.zeros((), dtype=torch.float32, device=device)
        count: torch.Tensor = group["step"]
        return count.add_(1)


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
