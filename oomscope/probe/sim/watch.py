"""Tells phases, modules and roles of a program that tells nothing itself, from hooks on its modules and optimizer.

Forward is what runs from the start of an iteration and inside the root module, loss what follows it, backward what
the autograd engine runs, optimizer what follows backward. A microbatch ends with its backward.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules import module as hooks
from torch.optim import optimizer as optim

from oomscope.probe.local_part import local_part
from oomscope.probe.sim.memory import SimMemory
from oomscope.probe.sim.position import Position
from oomscope.snapshot.trace import Category


class Watch:
    """Follows a target from outside.

    Args:
        position: learns phases and modules.
        memory: learns roles.
    """

    def __init__(self, position: Position, memory: SimMemory) -> None:
        self._position = position
        self._memory = memory
        self._roots: list[torch.nn.Module] = []
        self._optimizers: list[torch.optim.Optimizer] = []
        self._microbatch = 0
        self._in_backward = False

    def follow(self, models: Iterable[torch.nn.Module], optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Learn the target's modules, parameters and optimizers."""
        for model in models:
            self._roots.append(model)
            self._position.name_modules(model)
            for parameter in model.parameters():
                if parameter.requires_grad and parameter.is_leaf:
                    parameter.register_post_accumulate_grad_hook(self._gradient_arrived)
        self._optimizers.extend(optimizers)
        self.label()

    def label(self) -> None:
        """Label parameters, gradients and optimizer states as they stand."""
        for model in self._roots:
            for tensor in (*model.parameters(), *model.buffers()):
                self._label(tensor, Category.PARAMETER)
                self._label(getattr(tensor, "main_grad", None), Category.MAIN_GRADIENT)
        for optimizer in self._optimizers:
            for state in optimizer.state.values():
                for value in state.values():
                    self._label(value, Category.OPTIMIZER_STATE)

    def iteration_begins(self) -> None:
        """Start to count microbatches anew."""
        self._microbatch = 0

    def backward_begins(self) -> None:
        """Note that the autograd engine starts."""
        self._memory.settle()
        self._imply("backward")
        self._in_backward = True

    def backward_ends(self) -> None:
        """Note that the autograd engine stopped; the next forward of the root module is another microbatch.

        Until then what runs belongs to the update, such as gradient clipping; without a root module nobody could
        tell when forward begins again, so there it begins at once.
        """
        self._in_backward = False
        self._microbatch += 1
        self._imply("optimizer" if self._roots else "forward")

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Hook every module's forward and every optimizer's step."""
        handles = [
            hooks.register_module_forward_pre_hook(self._before_forward),
            hooks.register_module_forward_hook(self._after_forward, always_call=True),
            optim.register_optimizer_step_pre_hook(self._before_step),
            optim.register_optimizer_step_post_hook(self._after_step),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _before_forward(self, module: torch.nn.Module, args: Any) -> None:
        if self._position.module_depth == 0 and self._is_root(module):
            self._imply("forward")
        self._position.enter_module(module)

    def _after_forward(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        self._position.leave_module()
        if self._position.module_depth == 0 and self._is_root(module):
            self._imply("loss")

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._memory.settle()
        self._imply("optimizer")

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self.label()
        self._imply("optimizer" if self._roots else "forward")

    def _gradient_arrived(self, parameter: torch.Tensor) -> None:
        self._label(parameter.grad, Category.GRADIENT)

    def _imply(self, phase: str) -> None:
        """Set the phase, unless the program tells its own, is not yet training, or recomputes in backward."""
        if not self._position.told and self._position.training and not self._in_backward:
            self._position.imply(phase, -1 if phase == "optimizer" else self._microbatch)

    def _is_root(self, module: torch.nn.Module) -> bool:
        return any(module is root for root in self._roots)

    def _label(self, tensor: Any, category: Category) -> None:
        if isinstance(tensor, torch.Tensor):
            self._memory.label(local_part(tensor).untyped_storage(), category)
