"""Loss scaling: gradients too small for fp16 are made larger by a factor on the loss, and divided by it at the step.

Megatron-Core ``optimizer/grad_scaler.py``. The factor and the flag that an infinity was found are single numbers on
the device, a 512-byte block each; gradients are divided in place, so that scaling costs no other byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist

from oomscope.config.schema import Config, OptimizerConfig
from oomscope.model.base.device import computes

_GROWTH = 2.0
_BACKOFF = 0.5


class GradScaler:
    """A factor on the loss that stays the same (Megatron-Core ``ConstantGradScaler``).

    Args:
        initial_scale: the factor.
        device: where gradients live.
    """

    def __init__(self, initial_scale: float, device: torch.device) -> None:
        self.scale = torch.full((1,), initial_scale, dtype=torch.float32, device=device)
        self._found_inf = torch.zeros(1, dtype=torch.float32, device=device)

    @property
    def tensors(self) -> Iterator[torch.Tensor]:
        """The scaler's permanent tensors on the device."""
        yield from (self.scale, self._found_inf)

    def scale_loss(self, loss: torch.Tensor) -> torch.Tensor:
        """Return ``loss`` times the factor, of shape [1]."""
        return self.scale * loss

    def unscale(self, grads: Sequence[torch.Tensor], groups: Sequence[dist.ProcessGroup | None]) -> bool:
        """Divide ``grads`` by the factor in place, and return whether all are finite on all ranks of ``groups``."""
        self._found_inf.zero_()
        if grads:
            inverse = self.scale.double().reciprocal().float()
            torch._amp_foreach_non_finite_check_and_unscale_(list(grads), self._found_inf, inverse)
        for group in groups:
            if group is not None:
                dist.all_reduce(self._found_inf, op=dist.ReduceOp.MAX, group=group)
        return not computes(self._found_inf.device) or self._found_inf.item() == 0

    def update(self, *, is_finite: bool) -> None:
        """Do nothing: the factor is constant."""


class DynamicGradScaler(GradScaler):
    """A factor that is halved where gradients overflow and doubled where they have not for long.

    Args:
        config: ``initial_loss_scale``, ``min_loss_scale``, ``loss_scale_window`` and ``hysteresis`` are read.
        device: where gradients live.
    """

    def __init__(self, config: OptimizerConfig, device: torch.device) -> None:
        super().__init__(config.initial_loss_scale, device)
        self._window = config.loss_scale_window
        self._hysteresis = config.hysteresis
        self._lowest, self._growth, self._backoff = (
            torch.full((1,), value, dtype=torch.float32, device=device)
            for value in (config.min_loss_scale, _GROWTH, _BACKOFF)
        )
        self._finite_steps = 0
        self._overflows_left = config.hysteresis

    @property
    def tensors(self) -> Iterator[torch.Tensor]:
        """The scaler's permanent tensors on the device."""
        yield from (*super().tensors, self._lowest, self._growth, self._backoff)

    def update(self, *, is_finite: bool) -> None:
        """Halve the factor at the last of ``hysteresis`` overflows, double it after a window of finite steps."""
        if not is_finite:
            self._finite_steps = 0
            self._overflows_left -= 1
            if self._overflows_left <= 0:
                self.scale = torch.maximum(self.scale * self._backoff, self._lowest)
            return
        self._finite_steps += 1
        if self._finite_steps == self._window:
            self._finite_steps = 0
            self._overflows_left = self._hysteresis
            self.scale = self.scale * self._growth


def build_grad_scaler(config: Config, device: torch.device) -> GradScaler | None:
    """Return the scaler that ``config`` asks for; bf16 and fp32 need none.

    As upstream (``optimizer/__init__.py``) a given ``loss_scale`` is constant in any precision.
    """
    if config.optimizer.loss_scale is not None:
        return GradScaler(config.optimizer.loss_scale, device)
    return DynamicGradScaler(config.optimizer, device) if config.precision.fp16 else None
