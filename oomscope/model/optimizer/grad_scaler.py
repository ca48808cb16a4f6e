"""Loss scaling: gradients too small for fp16 are made larger by a factor on the loss, and divided by it in place.

Megatron-Core ``optimizer/grad_scaler.py``. Factor and flag are single numbers on the device, a 512-byte block each.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from oomscope.config.schema import Config
from oomscope.model.base.device import computes

_GROWTH = 2.0
_BACKOFF = 0.5


class GradScaler:
    """A factor on the loss (Megatron-Core ``ConstantGradScaler`` and ``DynamicGradScaler``).

    With ``loss_scale`` it stays the same. Else it is halved at the last of ``hysteresis`` steps whose gradients
    overflow, and doubled after a window of finite ones.
    """

    def __init__(self, config: Config, device: torch.device) -> None:
        self._config = config.optimizer
        self._is_dynamic = config.optimizer.loss_scale is None
        self._finite_steps = 0
        self._overflows_left = config.optimizer.hysteresis
        numbers = [config.optimizer.loss_scale or config.optimizer.initial_loss_scale, 0.0]
        numbers += [config.optimizer.min_loss_scale, _GROWTH, _BACKOFF] if self._is_dynamic else []
        self.tensors = [torch.full((1,), number, dtype=torch.float32, device=device) for number in numbers]
        """The scaler's permanent tensors: the factor, the flag; least factor, growth and backoff."""

    def scale_loss(self, loss: torch.Tensor) -> torch.Tensor:
        """Return ``loss`` times the factor, of shape [1]."""
        return self.tensors[0] * loss

    def unscale(self, grads: Sequence[torch.Tensor], groups: Sequence[dist.ProcessGroup | None]) -> bool:
        """Divide ``grads`` by the factor in place, update it, and return whether all are finite on all ``groups``."""
        scale, found_inf = self.tensors[:2]
        found_inf.zero_()
        if grads:
            inverse = scale.double().reciprocal().float()
            torch._amp_foreach_non_finite_check_and_unscale_(list(grads), found_inf, inverse)
        for group in groups:
            if group is not None:
                dist.all_reduce(found_inf, op=dist.ReduceOp.MAX, group=group)
        is_finite = not computes(found_inf.device) or found_inf.item() == 0
        if self._is_dynamic:
            self.update(is_finite=is_finite)
        return is_finite

    def update(self, *, is_finite: bool) -> None:
        """Halve or double the factor where that is due."""
        scale, _, lowest, growth, backoff = self.tensors
        if not is_finite:
            self._finite_steps = 0
            self._overflows_left -= 1
            if self._overflows_left <= 0:
                self.tensors[0] = torch.maximum(scale * backoff, lowest)
            return
        self._finite_steps += 1
        if self._finite_steps == self._config.loss_scale_window:
            self._finite_steps = 0
            self._overflows_left = self._config.hysteresis
            self.tensors[0] = scale * growth


def build_grad_scaler(config: Config, device: torch.device) -> GradScaler | None:
    """Return the scaler that ``config`` asks for; bf16 and fp32 need none.

    As upstream (``optimizer/__init__.py``) a given ``loss_scale`` is constant in any precision.
    """
    scales = config.optimizer.loss_scale is not None or config.precision.fp16
    return GradScaler(config, device) if scales else None
