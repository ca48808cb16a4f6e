"""One forward, one backward: in which order a pipeline stage works, and what it keeps of a microbatch meanwhile.

Stage r of p runs ``min(p - r - 1, m)`` warm-up forwards, then alternates: at most ``min(p - r, m)`` microbatches are in
flight. Sources: Megatron-Core ``pipeline_parallel/schedules.py``, ``get_schedule_table``,
``forward_backward_pipelining_with_interleaving``, ``forward_backward_pipelining_without_interleaving``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from oomscope.config.schema import Config
from oomscope.model.parallel.p2p_communication import Action, Shift, StageLinks
from oomscope.model.parallel.parallel_state import ParallelState


class Turn(NamedTuple):
    """A microbatch's turn at a model chunk, counted in the order of forwards; backward takes the chunks in reverse."""

    microbatch: int
    chunk: int


def turns(num_microbatches: int, chunks: int, group_size: int) -> list[Turn]:
    """Return all turns in order, the same on every rank: each chunk takes a whole group of microbatches in a row."""
    starts = range(0, num_microbatches, group_size)
    groups = [range(start, min(start + group_size, num_microbatches)) for start in starts]
    return [Turn(microbatch, chunk) for group in groups for chunk in range(chunks) for microbatch in group]


@dataclass(frozen=True)
class PassOrder:
    """The forwards of an iteration on one rank, numbered from 0, and how the backwards follow them."""

    chunks: tuple[int, ...]
    """The model chunk of each forward."""
    backward: tuple[int, ...]
    """Numbers of the forwards in the order in which they are differentiated."""
    warmup: int
    """Forwards before the first that a backward follows at once."""

    def differentiated_before(self, forward: int) -> int:
        """Return how many backwards are over when ``forward`` runs."""
        return max(0, forward - self.warmup)


def warmup_passes(pp_size: int, pp_rank: int, num_microbatches: int, chunks: int = 1, group_size: int = 1) -> int:
    """Return the forwards before the first that a backward follows at once.

    ``min(p - r - 1, m)`` with one chunk, ``min(2(p - r - 1) + (v - 1)G, mv)`` interleaved.
    """
    ahead = pp_size - pp_rank - 1
    return min(ahead if chunks == 1 else 2 * ahead + (chunks - 1) * group_size, num_microbatches * chunks)


def pass_order(config: Config, pp_rank: int) -> PassOrder:
    """Return the order on pipeline rank ``pp_rank``."""
    p, m, v = config.parallel.pipeline_model_parallel_size, config.num_microbatches, config.model_chunks
    group = config.microbatch_group_size
    order = turns(m, v, group if v > 1 else m)
    number = {turn: index for index, turn in enumerate(order)}
    backward = tuple(number[turn._replace(chunk=v - 1 - turn.chunk)] for turn in order)
    return PassOrder(tuple(turn.chunk for turn in order), backward, warmup_passes(p, pp_rank, m, v, group))


def one_forward_one_backward(pp_size: int, pp_rank: int, num_microbatches: int) -> Iterator[Action]:
    """Yield the actions of stage ``pp_rank`` in order: warm-up, steady state, cool-down."""
    warmup = warmup_passes(pp_size, pp_rank, num_microbatches)
    for index in range(num_microbatches + warmup):
        if index < num_microbatches:
            yield Action("forward", index)
        if index >= warmup:
            yield Action("backward", index - warmup)


class StageStep(Protocol):
    """What a stage computes."""

    def forward(self, action: Action, received: torch.Tensor | None) -> torch.Tensor:
        """Return the hidden state for the next stage, or at the end of the model the loss that is differentiated."""
        ...

    def backward(self, action: Action, output: torch.Tensor | GradientEdge, output_grad: torch.Tensor | None) -> None:
        """Differentiate ``output`` of the same microbatch and chunk; without ``output_grad`` it is the loss."""
        ...


class InFlight(NamedTuple):
    """What a stage keeps of a microbatch between its forward and its backward, besides the saved activations."""

    received: torch.Tensor | None
    output: torch.Tensor | GradientEdge

    @classmethod
    def of(cls, received: torch.Tensor | None, output: torch.Tensor, *, deallocate: bool) -> InFlight:
        """Keep of a sent ``output`` only its place in the autograd graph, if it is to be deallocated.

        That is Megatron-Core's ``deallocate_pipeline_outputs`` (Korthikanti et al. 2022, appendix B): 2nh/σ bytes less
        for every microbatch in flight.
        """
        return cls(received, get_gradient_edge(output) if deallocate else output)

    def backward(self, step: StageStep, action: Action, output_grad: torch.Tensor | None) -> torch.Tensor | None:
        """Differentiate the output and return the gradient of what was received."""
        step.backward(action, self.output, output_grad)
        return self.received.grad if self.received is not None else None


def run_one_forward_one_backward(
    step: StageStep, links: StageLinks, *, state: ParallelState, num_microbatches: int, deallocate_outputs: bool
) -> None:
    """Run every microbatch of one iteration through this rank's stage, forward and backward.

    With ``deallocate_outputs`` a hidden state that has been sent is freed. The local variables of Megatron-Core's loop
    hold more of the microbatch that was differentiated last (schedules.py,
    forward_backward_pipelining_without_interleaving): its autograd graph, with what it received, and the gradient of
    its output until the next forward is through, and the gradient of what it received until the next backward is.
    """
    actions = list(one_forward_one_backward(state.pp.size, state.pp.rank, num_microbatches))
    deallocate = deallocate_outputs and not state.is_last_stage
    in_flight: deque[InFlight] = deque()
    differentiated: InFlight | None = None
    input_grad: torch.Tensor | None = None
    output_grad: torch.Tensor | None = None
    (arrived,) = links.shift(_arriving(actions[0], state))
    for action, following in zip(actions, [*actions[1:], None], strict=True):
        if action.direction == "forward":
            output = step.forward(action, arrived)
            differentiated = output_grad = None
            in_flight.append(InFlight.of(arrived, output, deallocate=deallocate))
            leaving = _leaving(action, output, state)
            del output
        else:
            output_grad = arrived
            differentiated = in_flight.popleft()
            input_grad = differentiated.backward(step, action, output_grad)
            leaving = _leaving(action, input_grad, state)
        arrived = None
        if following is not None and following.direction != action.direction:
            _, arrived = links.shift(leaving, _arriving(following, state))
            del leaving
            continue
        links.shift(leaving)
        del leaving
        arrived = links.shift(_arriving(following, state))[0] if following is not None else None


def _arriving(action: Action, state: ParallelState) -> Shift:
    """Return what ``action`` receives: nothing where the model begins, nor, backward, where it ends."""
    begins = state.is_first_stage if action.direction == "forward" else state.is_last_stage
    return Shift(action.direction, None, None if begins else action)


def _leaving(action: Action, made: torch.Tensor | None, state: ParallelState) -> Shift:
    """Return what is sent of what ``action`` made."""
    ends = state.is_last_stage if action.direction == "forward" else state.is_first_stage
    return Shift(action.direction, None if ends else made, None)
