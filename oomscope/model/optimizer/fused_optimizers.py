"""Adam and SGD in one fused kernel a call: no temporaries, two states or one a parameter, one step count a group; and
Adam whose moments and master weights may have fewer bits (Megatron-Core ``use_precision_aware_optimizer``).

Megatron-Core trains with the FusedAdam and FusedSGD of Apex or Transformer Engine, whose multi-tensor kernels update
parameters and states in place. ``torch.optim.AdamW(fused=True)`` runs the same kind of kernel, but keeps a step count
of its own for each parameter, a 512-byte block apiece on the device; FusedAdam keeps one a group.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from oomscope.config.schema import OptimizerConfig
from oomscope.model.base.device import computes

_PIECE = 4 * 1024**2
"""Elements that are computed at once where single operations stand in for the kernel."""

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Dtypes by their names in the configuration."""


class GroupedOptimizer(Optimizer):
    """An optimizer that updates one group of parameters after the other, in place."""

    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    """torch's own, without the wrapper that keeps torch's compiler out of it: that imports the compiler first, which
    takes half of the time of a small probe, and nothing compiles the bundled model."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update all parameters in place; there is no closure."""
        for group in self.param_groups:
            self._step_group(group)

    def _step_group(self, group: dict[str, Any]) -> None:
        raise NotImplementedError


class FusedAdam(GroupedOptimizer):
    """AdamW on fp32 tensors; ``exp_avg`` and ``exp_avg_sq`` are made in the first step, as upstream.

    Without values (``computes``) they are made and nothing is written into them.
    """

    def __init__(
        self,
        params: Iterable[torch.Tensor] | Iterable[dict[str, Any]],
        config: OptimizerConfig,
        *,
        computes: bool = True,
    ) -> None:
        super().__init__(params, {"lr": config.lr, "weight_decay": config.weight_decay})
        self._config = config
        self._computes = computes

    def _step_group(self, group: dict[str, Any]) -> None:
        params = [param for param in group["params"] if param.grad is not None]
        if not params:
            return
        states = [self._moments(param) for param in params]
        if not self._computes:
            return
        torch._fused_adamw_(
            params,
            [param.grad for param in params],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [self._count(group, params[0].device)] * len(params),
            lr=group["lr"],
            beta1=self._config.adam_beta1,
            beta2=self._config.adam_beta2,
            weight_decay=group["weight_decay"],
            eps=self._config.adam_eps,
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
    """SGD on fp32 tensors; ``momentum_buffer`` is made in the first step, and not at all without momentum."""

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


class PrecisionAwareAdam(GroupedOptimizer):
    """AdamW on parameters of any dtype; all states are made in the first step, as upstream.

    Transformer Engine's FusedAdam (``pytorch/optimizers/fused_adam.py``) with master weights of its own: it is given
    the 16-bit parameters, reads gradients in the dtype of their buffer, and computes in fp32 inside one kernel. An fp32
    master of a bf16 parameter is kept as the 16 bits that the parameter lacks. Bytes a parameter over d shards
    (Megatron-Core ``optimizer/distrib_optimizer.py``): ``4 + 2 + (2 + 4 + 4)/d`` with remainders, moments in bf16
    ``(2 + 2 + 2)/d``.

    Moments in fp16, and in bf16 unless both are, are made fp32 for the length of the step, all of a group at once.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], config: OptimizerConfig) -> None:
        super().__init__(groups, {"lr": config.lr, "weight_decay": config.weight_decay})
        self._config = config
        self._moments = {"exp_avg": DTYPES[config.exp_avg_dtype], "exp_avg_sq": DTYPES[config.exp_avg_sq_dtype]}
        self._reads_bf16 = set(self._moments.values()) == {torch.bfloat16}
        """Whether the kernel takes moments in bf16: only if both are (``fuse_unscale`` upstream)."""
        self.grads: dict[torch.Tensor, torch.Tensor] = {}
        """Gradient of each parameter, in any dtype (``decoupled_grad`` upstream)."""

    def _step_group(self, group: dict[str, Any]) -> None:
        params: list[torch.Tensor] = group["params"]
        group["step"] = group.get("step", 0) + 1
        if not params:
            return
        states = [self._states(param) for param in params]
        read = [{name: self._readable(state[name]) for name in self._moments} for state in states]
        beta1, beta2 = self._config.adam_beta1, self._config.adam_beta2
        factors = [group["lr"], beta1, beta2, self._config.adam_eps, group["weight_decay"]]
        for param, moments, state in zip(params, read, states, strict=True):
            if computes(param.device):  # in pieces; upstream's kernel has no temporaries
                tensors = (param, self.grads[param], moments["exp_avg"], moments["exp_avg_sq"], state["master_param"])
                for pieces in zip(*(tensor.view(-1).split(_PIECE) for tensor in tensors), strict=True):
                    _update(*pieces, factors=factors, step=group["step"])
        for state, moments in zip(states, read, strict=True):
            for name, updated in moments.items():
                if updated is not state[name]:
                    state[name].copy_(updated)

    def _readable(self, moment: torch.Tensor) -> torch.Tensor:
        return moment if self._reads_bf16 or moment.dtype == torch.float32 else moment.float()

    def _states(self, param: torch.Tensor) -> dict[str, torch.Tensor]:
        state: dict[str, torch.Tensor] = self.state[param]
        if not state:
            for name, dtype in self._moments.items():
                state[name] = torch.zeros_like(param, dtype=dtype)
            keeps_rest = self._config.store_param_remainders and param.dtype == torch.bfloat16
            state["master_param"] = torch.zeros_like(param, dtype=torch.int16) if keeps_rest else param.float().clone()
        return state


def _update(
    param: torch.Tensor,
    grad: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    master: torch.Tensor,
    *,
    factors: list[float],
    step: int,
) -> None:
    lr, beta1, beta2, eps, weight_decay = factors
    weight = _joined(param, master) if master.dtype == torch.int16 else master.float()
    gradient = grad.float()
    first = exp_avg.float().mul(beta1).add_(gradient, alpha=1 - beta1)
    second = exp_avg_sq.float().mul(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    denominator = second.div(1 - beta2**step).sqrt_().add_(eps)
    update = first.div(1 - beta1**step).div_(denominator).add_(weight, alpha=weight_decay)
    weight = weight.sub(update, alpha=lr)
    exp_avg.copy_(first)
    exp_avg_sq.copy_(second)
    if master.dtype == torch.int16:
        _split(weight, param, master)
    else:
        master.copy_(weight)
        param.copy_(weight)


def _joined(param: torch.Tensor, remainder: torch.Tensor) -> torch.Tensor:
    """Return the fp32 number whose upper half, rounded, is ``param``, and whose lower half is ``remainder``."""
    bits = (param.view(torch.int16).to(torch.int32) << 16) + remainder.to(torch.int32)
    return bits.view(torch.float32)


def _split(weight: torch.Tensor, param: torch.Tensor, remainder: torch.Tensor) -> None:
    bits = weight.view(torch.int32)
    upper = (bits + 0x8000) >> 16
    param.view(torch.int16).copy_(upper.to(torch.int16))
    remainder.copy_((bits - (upper << 16)).to(torch.int16))
