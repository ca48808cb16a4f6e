"""What pipeline stages send each other: hidden states [s/σ, b, h] one way, their gradients the other way.

Buffers are made when something is about to arrive. Sends and receives that are due together go out as one batch:
NCCL serialises a pair's transfers, and two stages that both send first would wait for ever
(Megatron-Core ``pipeline_parallel/p2p_communication.py``).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.distributed as dist

from oomscope.model.base.observer import Observer
from oomscope.model.parallel.parallel_state import ParallelState

Direction = Literal["forward", "backward"]


class Action(NamedTuple):
    """One pass of one microbatch through a model chunk of a stage."""

    direction: Direction
    microbatch: int
    chunk: int = 0


class Shift(NamedTuple):
    """What moves in one direction at once."""

    direction: Direction
    leaving: torch.Tensor | None
    arriving: Action | None
    """The action whose input arrives."""


class StageLinks:
    """Makes buffers for what neighbouring stages send, and moves tensors; with model chunks the stages form a ring."""

    def __init__(
        self,
        state: ParallelState,
        *,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        observer: Observer,
    ) -> None:
        self._state = state
        self._shape = shape
        self._dtype = dtype
        self._device = device
        self._observer = observer

    def connect(self) -> None:
        """Meet all stages once; call it on each before the first step.

        A batch of sends and receives may concern some ranks of a group only if it is not the group's first
        communication (``torch.distributed.batch_isend_irecv``).
        """
        if self._state.pp.group is not None:
            dist.all_reduce(torch.zeros(1, device=self._device), group=self._state.pp.group)

    def shift(self, *shifts: Shift) -> list[torch.Tensor | None]:
        """Hand tensors on while receiving others, all in one batch; return what arrived of each of ``shifts``."""
        buffers = [None if shift.arriving is None else self._make_buffer(shift.arriving) for shift in shifts]
        operations: list[dist.P2POp] = []
        for shift, buffer in zip(shifts, buffers, strict=True):
            ahead = 1 if shift.direction == "forward" else -1
            for move, tensor, peer in ((dist.isend, shift.leaving, ahead), (dist.irecv, buffer, -ahead)):
                if tensor is not None:
                    rank = (self._state.pp.rank + peer) % self._state.pp.size
                    operations.append(dist.P2POp(move, tensor.detach(), group=self._state.pp.group, group_peer=rank))
        if operations:
            for work in dist.batch_isend_irecv(operations):
                work.wait()
        return buffers

    def _make_buffer(self, action: Action) -> torch.Tensor:
        with self._observer.phase(action.direction, microbatch=action.microbatch):
            buffer = torch.empty(self._shape, dtype=self._dtype, device=self._device)
        if action.direction == "forward":
            return buffer.requires_grad_()
        self._observer.role("communication", [buffer])
        return buffer
