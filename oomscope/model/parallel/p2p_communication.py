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
    """What goes round the ring in one direction at once."""

    direction: Direction
    leaving: torch.Tensor | None
    arriving: Action | None
    """Whose input it is that arrives."""


class _Links:
    """Makes buffers and moves tensors.

    Args:
        state: this rank's place.
        shape: of every tensor on the links.
        dtype: of every tensor on the links.
        device: where buffers are made.
        observer: receives the phase in which a buffer is made, and received gradients as communication.
    """

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
        if self._state.pp_group is not None:
            dist.all_reduce(torch.zeros(1, device=self._device), group=self._state.pp_group)

    def _make_buffer(self, action: Action) -> torch.Tensor:
        with self._observer.phase(action.direction, microbatch=action.microbatch):
            buffer = torch.empty(self._shape, dtype=self._dtype, device=self._device)
        if action.direction == "forward":
            return buffer.requires_grad_()
        self._observer.role("communication", [buffer])
        return buffer

    def _receiving(self, buffer: torch.Tensor, peer: int) -> dist.P2POp:
        return dist.P2POp(dist.irecv, buffer.detach(), group=self._state.pp_group, group_peer=peer)

    def _sending(self, tensor: torch.Tensor, peer: int) -> dist.P2POp:
        return dist.P2POp(dist.isend, tensor.detach(), group=self._state.pp_group, group_peer=peer)

    @staticmethod
    def _transfer(operations: list[dist.P2POp]) -> None:
        if operations:
            for work in dist.batch_isend_irecv(operations):
                work.wait()


class StageLinks(_Links):
    """The links of a stage to the one before and the one after it."""

    def receive(self, action: Action) -> torch.Tensor | None:
        """Return what ``action`` needs from its neighbour, None where it needs nothing."""
        buffer = self._buffer(action)
        self._transfer(self._receive_ops(action, buffer))
        return buffer

    def send(self, action: Action, tensor: torch.Tensor | None) -> None:
        """Hand on what ``action`` made; returns when ``tensor`` may be freed."""
        self._transfer(self._send_ops(action, tensor))

    def exchange(self, action: Action, tensor: torch.Tensor | None, following: Action) -> torch.Tensor | None:
        """Hand on what ``action`` made while receiving from the same neighbour what ``following`` needs."""
        buffer = self._buffer(following)
        self._transfer([*self._send_ops(action, tensor), *self._receive_ops(following, buffer)])
        return buffer

    def _buffer(self, action: Action) -> torch.Tensor | None:
        return None if self._source(action) is None else self._make_buffer(action)

    def _receive_ops(self, action: Action, buffer: torch.Tensor | None) -> list[dist.P2POp]:
        source = self._source(action)
        return [] if buffer is None or source is None else [self._receiving(buffer, source)]

    def _send_ops(self, action: Action, tensor: torch.Tensor | None) -> list[dist.P2POp]:
        destination = self._destination(action)
        return [] if tensor is None or destination is None else [self._sending(tensor, destination)]

    def _source(self, action: Action) -> int | None:
        return self._stage(self._state.pp_rank + (-1 if action.direction == "forward" else 1))

    def _destination(self, action: Action) -> int | None:
        return self._stage(self._state.pp_rank + (1 if action.direction == "forward" else -1))

    def _stage(self, pp_rank: int) -> int | None:
        return pp_rank if 0 <= pp_rank < self._state.pp_size else None


class RingLinks(_Links):
    """The links of stages that stand in a ring: the last one's output is the input of the first one's next chunk."""

    def shift(self, *shifts: Shift) -> list[torch.Tensor | None]:
        """Hand tensors on while receiving others, all in one batch; return what arrived of each of ``shifts``."""
        buffers = [None if shift.arriving is None else self._make_buffer(shift.arriving) for shift in shifts]
        operations: list[dist.P2POp] = []
        for shift, buffer in zip(shifts, buffers, strict=True):
            ahead = 1 if shift.direction == "forward" else -1
            destination, source = ((self._state.pp_rank + step) % self._state.pp_size for step in (ahead, -ahead))
            operations += [] if shift.leaving is None else [self._sending(shift.leaving, destination)]
            operations += [] if buffer is None else [self._receiving(buffer, source)]
        self._transfer(operations)
        return buffers
