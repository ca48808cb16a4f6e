"""Adam for a share of the parameters on the host (Megatron-Core ``optimizer/cpu_offloading/hybrid_optimizer.py``).

Of each of these parameters the host holds a pinned fp32 copy, a pinned fp32 gradient and two moments, 16 bytes; the
device spares the moments, 8 bytes, and with the precision-aware optimizer the master weight as well, 12. A step
copies gradients down, updates on the host, and copies the result up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import torch

from oomscope.config.schema import OptimizerConfig
from oomscope.model.base.device import SideStream, computes
from oomscope.model.optimizer.fused_optimizers import FusedAdam

Weight = TypeVar("Weight", bound="Updated")


class Updated(Protocol):
    """A part of a parameter that this rank updates."""

    @property
    def master(self) -> torch.Tensor:
        """Where the result of an update goes: the fp32 master weight, or the weight itself."""
        ...

    @property
    def decayed(self) -> bool:
        """Whether weight decay applies."""
        ...


def split_by_fraction(weights: Sequence[Weight], fraction: float) -> tuple[list[Weight], list[Weight]]:
    """Return the weights of the host and those of the device, each in order.

    Weights move while less than ``fraction`` of all elements has moved, so that the last one overshoots.
    """
    goal = fraction * sum(weight.master.numel() for weight in weights)
    moved, number = 0, 0
    while number < len(weights) and moved < goal:
        moved += weights[number].master.numel()
        number += 1
    return list(weights[:number]), list(weights[number:])


class HostAdam:
    """Updates ``weights`` on the host, from copies of their values that it makes now.

    ``overlap_cpu_optimizer_d2h_h2d`` lets copies of one parameter run beside the update of another; on the device both
    ways hold the same bytes.
    """

    def __init__(self, config: OptimizerConfig, weights: Sequence[Updated]) -> None:
        device = weights[0].master.device
        self._down, self._up = SideStream(device), SideStream(device)
        self._targets = [weight.master for weight in weights]
        self._hosts = [
            self._down.fill(self._down.pinned(master.shape, torch.float32), master) for master in self._targets
        ]
        if config.overlap_cpu_optimizer_d2h_h2d:
            shares = [[number] for number in range(len(weights))]
        else:
            shares = [[n for n, w in enumerate(weights) if w.decayed is decayed] for decayed in (True, False)]
        self._shares = [
            (
                numbers,
                FusedAdam(
                    [
                        {
                            "params": [self._hosts[number] for number in numbers],
                            "weight_decay": config.weight_decay if weights[numbers[0]].decayed else 0.0,
                        }
                    ],
                    config,
                    computes=computes(device),
                ),
            )
            for numbers in shares
            if numbers
        ]

    @torch.no_grad()
    def step(self, grads: Sequence[torch.Tensor]) -> None:
        """Update all weights by ``grads``, one for each."""
        for numbers, optimizer in self._shares:
            pairs = []
            for number in numbers:
                host = self._hosts[number]
                if host.grad is None:
                    host.grad = self._down.pinned(host.shape, torch.float32)
                pairs.append((host.grad, grads[number]))
            self._down.finish(self._down.copy(pairs))
            optimizer.step()
            self._up.wait(self._up.copy([(self._targets[number], self._hosts[number]) for number in numbers]))
