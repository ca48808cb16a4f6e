"""Takes phases and roles from a trainer that tells them (:class:`~oomscope.model.observer.Observer`)."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from oomscope.model.observer import Phase, Role
from oomscope.probe.recording.blocks import ToldBlocks
from oomscope.probe.recording.position import Position
from oomscope.snapshot.trace import Category

if TYPE_CHECKING:
    import torch


class RecordedObserver:
    """An observer of a run on a card.

    Args:
        position: learns the phase.
        blocks: learns the roles.
    """

    def __init__(self, position: Position, blocks: ToldBlocks) -> None:
        self._position = position
        self._blocks = blocks

    def phase(
        self, phase: Phase, *, iteration: int | None = None, microbatch: int | None = None
    ) -> AbstractContextManager[None]:
        """Mark what runs inside; None keeps the enclosing value."""
        return self._position.phase(phase, iteration=iteration, microbatch=microbatch)

    def role(self, role: Role, tensors: Iterable[torch.Tensor]) -> None:
        """Say what the storages of ``tensors`` are for."""
        self._blocks.tell(Category[role.upper()], tensors)
