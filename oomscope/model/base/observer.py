"""How the trainer reports phases and the roles of tensors; the model knows nothing else of measurement."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import torch

Phase = Literal["init", "forward", "loss", "backward", "optimizer"]
Role = Literal["parameter", "gradient", "main_gradient", "optimizer_state", "workspace", "communication", "input"]


class Observer(Protocol):
    """Receives phases and the roles of persistent tensors."""

    def phase(
        self, phase: Phase, *, iteration: int | None = None, microbatch: int | None = None
    ) -> AbstractContextManager[object]:
        """Mark what runs inside as ``phase``; nests, the innermost wins; None keeps the enclosing value."""
        ...

    def role(self, role: Role, tensors: Iterable[torch.Tensor]) -> None:
        """Label the storages of ``tensors`` with ``role``."""
        ...


class NullObserver:
    """The observer of a run that is not measured."""

    def phase(
        self, phase: Phase, *, iteration: int | None = None, microbatch: int | None = None
    ) -> AbstractContextManager[object]:
        """Do nothing."""
        return nullcontext()

    def role(self, role: Role, tensors: Iterable[torch.Tensor]) -> None:
        """Do nothing."""
