"""Where the parameters of a program lie: a model that stayed on the CPU measures nothing of the card."""

from __future__ import annotations

import gc
import weakref

import torch

from oomscope.probe.recording.local_part import local_part


class Parameters:
    """Bytes of parameters, on the CPU and on the card."""

    def __init__(self) -> None:
        self.on_cpu = 0
        self.on_card = 0
        self._seen: set[int] = set()
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def see(self, optimizer: torch.optim.Optimizer) -> None:
        """Count what ``optimizer`` steps, at first sight of it."""
        if optimizer not in self._optimizers:
            self._optimizers.add(optimizer)
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    self._count(parameter)

    def look_around(self) -> None:
        """Count the parameters of every module that is alive; no optimizer may have stepped them."""
        for each in gc.get_objects():
            if type(each) is torch.nn.Parameter:
                self._count(each)

    def _count(self, parameter: torch.Tensor) -> None:
        if id(parameter) in self._seen:
            return
        self._seen.add(id(parameter))
        part = local_part(parameter)
        if part.device.type == "cpu":
            self.on_cpu += part.nbytes
        elif part.device.type == "cuda":
            self.on_card += part.nbytes
