"""Adam for a share of the parameters on the host (Megatron-Core ``optimizer/cpu_offloading/hybrid_optimizer.py``).

Of each of these parameters the host holds a pinned fp32 copy, a pinned fp32 gradient and two moments, 16 bytes; the
device spares the moments, 8 bytes, and with the precision-aware optimizer the master weight as well, 12. A step
copies gradients down, updates on the host, and copies the result up.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from oomscope.config.schema import OptimizerConfig
from oomscope.model.base.device import SideStream, computes
from oomscope.model.optimizer.fused_optimizers import FusedAdam


class HostAdam:
    """Updates master weights on the host, from copies of their values that it makes now.

    ``overlap_cpu_optimizer_d2h_h2d`` lets copies of one parameter run beside the update of another; on the device both
    ways hold the same bytes.
    """

    def __init__(self, config: OptimizerConfig, masters: Sequence[torch.Tensor], decayed: Sequence[bool]) -> None:
        device = masters[0].device
        self._down, self._up = SideStream(device), SideStream(device)
        self._targets = masters
        self._hosts = [
            self._down.fill(self._down.pinned(master.shape, torch.float32), master) for master in self._targets
        ]
        if config.overlap_cpu_optimizer_d2h_h2d:
            shares = [[number] for number in range(len(masters))]
        else:
            shares = [[number for number, one in enumerate(decayed) if one is kind] for kind in (True, False)]

        def adam(numbers: list[int]) -> FusedAdam:
            decay = config.weight_decay if decayed[numbers[0]] else 0.0
            group = {"params": [self._hosts[number] for number in numbers], "weight_decay": decay}
            return FusedAdam([group], config, computes=computes(device))

        self._shares = [(numbers, adam(numbers)) for numbers in shares if numbers]

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
