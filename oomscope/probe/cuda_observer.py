"""Tells the real allocator where in training the program is, and remembers what storages are for.

The moment travels in ``user_metadata`` of every event (torch.cuda.memory._set_memory_metadata, torch 2.10 and
later). A program that tells nothing itself is followed from outside: ``backward()``, the optimizer's step, and
between them the forward pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd import graph
from torch.optim import optimizer as optim

from oomscope.model.observer import Phase, Role
from oomscope.probe.local_part import local_part
from oomscope.probe.roles import Told
from oomscope.snapshot.metadata import Metadata, to_text
from oomscope.snapshot.trace import Category, Moment

SetMetadata = Callable[[str], None]


class CudaObserver:
    """A :class:`~oomscope.model.observer.Observer` of a run on a real device.

    Args:
        set_metadata: takes the text that goes with every following event; None where torch has no such thing.
    """

    def __init__(self, set_metadata: SetMetadata | None) -> None:
        self._set_metadata = set_metadata
        self._moments: list[Moment] = [Moment("init", -1, -1)]
        self._told: list[Told] = []
        self._models: list[torch.nn.Module] = []
        self._optimizers: list[torch.optim.Optimizer] = []

    @property
    def moment(self) -> Moment:
        """Where in training the program is."""
        return self._moments[-1]

    @property
    def told(self) -> tuple[Told, ...]:
        """What was said of storages, in the order in which it was said."""
        return tuple(self._told)

    @contextmanager
    def phase(self, phase: Phase, *, iteration: int | None = None, microbatch: int | None = None) -> Iterator[None]:
        """Mark what runs inside; None keeps the enclosing value."""
        outer, depth = self.moment, len(self._moments)
        self._enter(
            Moment(
                phase,
                outer.iteration if iteration is None else iteration,
                outer.microbatch if microbatch is None else microbatch,
            )
        )
        try:
            yield
        finally:
            del self._moments[depth:]
            self._announce()

    def role(self, role: Role, tensors: Iterable[torch.Tensor]) -> None:
        """Remember what the storages of ``tensors`` are for."""
        self._tell(Category[role.upper()], tensors)

    def watch(self, models: Iterable[torch.nn.Module], optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Learn the modules and optimizers of a program that tells no roles itself."""
        self._models.extend(models)
        self._optimizers.extend(optimizers)
        self._tell(
            Category.PARAMETER, (tensor for model in self._models for tensor in (*model.parameters(), *model.buffers()))
        )

    @contextmanager
    def following(self) -> Iterator[None]:
        """See ``backward()`` and the optimizer's step of a program that tells no phases itself."""
        run_backward = graph._engine_run_backward

        def told_backward(*args: Any, **kwargs: Any) -> Any:
            if self._tells_backward:
                return run_backward(*args, **kwargs)
            with self.phase("backward"):
                try:
                    return run_backward(*args, **kwargs)
                finally:
                    self._gradients()

        def before_step(*_: Any) -> None:
            self._enter(self.moment._replace(phase="optimizer"))

        def after_step(*_: Any) -> None:
            self._moments.pop()
            self._announce()
            self._states()

        handles = [
            optim.register_optimizer_step_pre_hook(before_step),
            optim.register_optimizer_step_post_hook(after_step),
        ]
        # torch.autograd holds the function under its own name as well.
        graph._engine_run_backward = torch.autograd._engine_run_backward = told_backward  # type: ignore[attr-defined]
        try:
            yield
        finally:
            graph._engine_run_backward = torch.autograd._engine_run_backward = run_backward  # type: ignore[attr-defined]
            for handle in handles:
                handle.remove()

    @property
    def _tells_backward(self) -> bool:
        return self.moment.phase == "backward"

    def _gradients(self) -> None:
        parameters = [parameter for model in self._models for parameter in model.parameters()]
        gradients = (parameter.grad for parameter in parameters)
        self._tell(Category.GRADIENT, (gradient for gradient in gradients if gradient is not None))

    def _states(self) -> None:
        values = (
            value for optimizer in self._optimizers for state in optimizer.state.values() for value in state.values()
        )
        self._tell(Category.OPTIMIZER_STATE, (value for value in values if isinstance(value, torch.Tensor)))

    def _tell(self, category: Category, tensors: Iterable[torch.Tensor]) -> None:
        now = time.time_ns() // 1000
        for tensor in map(local_part, tensors):
            if tensor.device.type == "cuda":
                self._told.append(Told(tensor.untyped_storage().data_ptr(), now, category))

    def _enter(self, moment: Moment) -> None:
        self._moments.append(moment)
        self._announce()

    def _announce(self) -> None:
        if self._set_metadata is not None:
            self._set_metadata(to_text(Metadata(self.moment)))
