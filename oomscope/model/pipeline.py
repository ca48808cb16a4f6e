"""One forward, one backward: which layers a stage holds, in which order it works, and what it sends when.

The schedule is Megatron-Core's non-interleaved 1F1B (``pipeline_parallel/schedules.py``): stage r of p runs
``min(p - r - 1, m)`` warm-up forwards, then alternates, so that at most ``min(p - r, m)`` microbatches are in
flight. ``docs/design/pipeline.md`` says why it is not ``torch.distributed.pipelining``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Literal, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch.autograd.graph import GradientEdge, get_gradient_edge

from oomscope.config.schema import Config
from oomscope.errors import ConfigError
from oomscope.model.mesh import ParallelState
from oomscope.model.observer import Observer

Direction = Literal["forward", "backward"]


class Action(NamedTuple):
    """One pass of one microbatch through a stage."""

    direction: Direction
    microbatch: int


def stage_layers(config: Config, pp_rank: int) -> range:
    """Return the global indices of the layers that stage ``pp_rank`` holds.

    Raises:
        ConfigError: the layers cannot be shared out evenly.
    """
    layers, stages = config.model.num_layers, config.parallel.pipeline_model_parallel_size
    if layers % stages:
        raise ConfigError(
            f"{layers} layers cannot be shared out evenly over {stages} pipeline stages",
            where="parallel.pipeline_model_parallel_size",
            remedy="let model.num_layers be a multiple of it",
        )
    per_stage = layers // stages
    return range(pp_rank * per_stage, (pp_rank + 1) * per_stage)


def warmup_microbatches(pp_size: int, pp_rank: int, num_microbatches: int) -> int:
    """Return the forwards before the first steady-state forward: ``min(p - r - 1, m)``."""
    return min(pp_size - pp_rank - 1, num_microbatches)


def in_flight_microbatches(pp_size: int, pp_rank: int, num_microbatches: int) -> int:
    """Return the most microbatches whose activations a stage holds at once: ``min(p - r, m)``."""
    return min(pp_size - pp_rank, num_microbatches)


def one_forward_one_backward(pp_size: int, pp_rank: int, num_microbatches: int) -> Iterator[Action]:
    """Yield the actions of stage ``pp_rank`` in order: warm-up, steady state, cool-down."""
    warmup = warmup_microbatches(pp_size, pp_rank, num_microbatches)
    for microbatch in range(warmup):
        yield Action("forward", microbatch)
    for microbatch in range(warmup, num_microbatches):
        yield Action("forward", microbatch)
        yield Action("backward", microbatch - warmup)
    for microbatch in range(num_microbatches - warmup, num_microbatches):
        yield Action("backward", microbatch)


class StageStep(Protocol):
    """What a stage computes."""

    def forward(self, microbatch: int, received: torch.Tensor | None) -> torch.Tensor:
        """Return the hidden state for the next stage, or on the last stage the loss that is differentiated."""
        ...

    def backward(self, microbatch: int, output: torch.Tensor | GradientEdge, output_grad: torch.Tensor | None) -> None:
        """Differentiate ``output`` of ``microbatch``; no ``output_grad`` means that it is the loss."""
        ...


class StageLinks:
    """The links to the neighbouring stages; every tensor on them is a hidden state [s/σ, b, h] or its gradient.

    Buffers are made when something is about to arrive. Where a send and a receive concern the same neighbour they
    go out as one batch: NCCL serialises a pair's transfers, and two stages that both send first would wait for
    ever (Megatron-Core ``p2p_communication.py``).
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
        if self._source(action) is None:
            return None
        with self._observer.phase(action.direction, microbatch=action.microbatch):
            buffer = torch.empty(self._shape, dtype=self._dtype, device=self._device)
        if action.direction == "forward":
            return buffer.requires_grad_()
        self._observer.role("communication", [buffer])
        return buffer

    def _receive_ops(self, action: Action, buffer: torch.Tensor | None) -> list[dist.P2POp]:
        if buffer is None:
            return []
        return [dist.P2POp(dist.irecv, buffer.detach(), group=self._state.pp_group, group_peer=self._source(action))]

    def _send_ops(self, action: Action, tensor: torch.Tensor | None) -> list[dist.P2POp]:
        peer = self._destination(action)
        if tensor is None or peer is None:
            return []
        return [dist.P2POp(dist.isend, tensor.detach(), group=self._state.pp_group, group_peer=peer)]

    def _source(self, action: Action) -> int | None:
        step = -1 if action.direction == "forward" else 1
        return self._stage(self._state.pp_rank + step)

    def _destination(self, action: Action) -> int | None:
        step = 1 if action.direction == "forward" else -1
        return self._stage(self._state.pp_rank + step)

    def _stage(self, pp_rank: int) -> int | None:
        return pp_rank if 0 <= pp_rank < self._state.pp_size else None

    @staticmethod
    def _transfer(operations: list[dist.P2POp]) -> None:
        if operations:
            for work in dist.batch_isend_irecv(operations):
                work.wait()


class _InFlight(NamedTuple):
    """What a stage keeps of a microbatch between its forward and its backward, besides the saved activations."""

    received: torch.Tensor | None
    output: torch.Tensor | GradientEdge


def run_one_forward_one_backward(
    step: StageStep, links: StageLinks, *, state: ParallelState, num_microbatches: int, deallocate_outputs: bool
) -> None:
    """Run every microbatch of one iteration through this rank's stage, forward and backward.

    With ``deallocate_outputs`` a hidden state that has been sent is freed and only its place in the autograd graph
    is kept (Megatron-Core ``deallocate_pipeline_outputs``, Korthikanti et al. 2022, appendix B): 2nh/σ bytes less
    for every microbatch in flight.
    """
    actions = list(one_forward_one_backward(state.pp_size, state.pp_rank, num_microbatches))
    in_flight: deque[_InFlight] = deque()
    arrived = links.receive(actions[0])
    for action, following in zip(actions, [*actions[1:], None], strict=True):
        if action.direction == "forward":
            output = step.forward(action.microbatch, arrived)
            in_flight.append(_InFlight(arrived, _kept_output(output, state, deallocate_outputs)))
            leaving: torch.Tensor | None = output
            del output
        else:
            leaving = _backward(step, action.microbatch, in_flight.popleft(), arrived)
        arrived = None
        if following is not None and following.direction != action.direction:
            arrived = links.exchange(action, leaving, following)
            leaving = None
            continue
        links.send(action, leaving)
        leaving = None
        arrived = links.receive(following) if following is not None else None


def _kept_output(output: torch.Tensor, state: ParallelState, deallocate: bool) -> torch.Tensor | GradientEdge:
    return get_gradient_edge(output) if deallocate and not state.is_last_stage else output


def _backward(
    step: StageStep, microbatch: int, flight: _InFlight, output_grad: torch.Tensor | None
) -> torch.Tensor | None:
    step.backward(microbatch, flight.output, output_grad)
    return flight.received.grad if flight.received is not None else None
