"""The interleaved schedule: each pipeline rank holds v model chunks, and works on them in turn.

Megatron-Core's (``pipeline_parallel/schedules.py::forward_backward_pipelining_with_interleaving``): microbatches take
their turns in groups of G, each chunk a whole group. The bubble is shorter and more is in flight: on rank r of p
``min(2(p - r - 1) + (v - 1)G + 1, mv)`` chunk passes, on the first rank ``1 + (p - 1)/(pv)`` times the layers of 1F1B
(Korthikanti et al. 2022, section 4.2.3) with G = p, on the last rank ``(v - 1)G + 1`` chunk passes instead of one.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from oomscope.config.schema import Config
from oomscope.model.mesh import ParallelState
from oomscope.model.pipeline import InFlight, StageStep
from oomscope.model.stage_links import Action, Direction, RingLinks


class Turn(NamedTuple):
    """A microbatch's turn at a model chunk, counted in the order of forwards; backward takes the chunks in reverse."""

    microbatch: int
    chunk: int


@dataclass(frozen=True)
class InterleavedSchedule:
    """What one rank does in one iteration, in which order.

    Attributes:
        pp_size: stages (p).
        pp_rank: this one (r).
        num_microbatches: m.
        chunks: model chunks of each rank (v).
        group_size: microbatches that a chunk takes in a row (G); at least p.
    """

    pp_size: int
    pp_rank: int
    num_microbatches: int
    chunks: int
    group_size: int

    @property
    def turns(self) -> list[Turn]:
        """All turns in order, the same on every rank (``get_schedule_table``)."""
        starts = range(0, self.num_microbatches, self.group_size)
        groups = [range(start, min(start + self.group_size, self.num_microbatches)) for start in starts]
        return [Turn(microbatch, chunk) for group in groups for chunk in range(self.chunks) for microbatch in group]

    @property
    def warmup(self) -> int:
        """Forwards before the first backward's pair: ``min(2(p - r - 1) + (v - 1)G, mv)``."""
        ahead = 2 * (self.pp_size - self.pp_rank - 1) + (self.chunks - 1) * self.group_size
        return min(ahead, self.num_microbatches * self.chunks)

    @property
    def in_flight(self) -> int:
        """The most chunk passes whose activations the rank holds at once."""
        return min(self.warmup + 1, self.num_microbatches * self.chunks)

    def actions(self) -> Iterator[Action]:
        """Yield the rank's actions: warm-up, then a forward and a backward in turn, then the backwards left."""
        total = self.num_microbatches * self.chunks
        forwards, backwards = self.passes("forward"), self.passes("backward")
        yield from forwards[: self.warmup]
        for index in range(self.warmup, total):
            yield forwards[index]
            yield backwards[index - self.warmup]
        yield from backwards[total - self.warmup :]

    def passes(self, direction: Direction) -> list[Action]:
        """Return the rank's forwards, or its backwards, in order."""
        if direction == "forward":
            return [Action(direction, turn.microbatch, turn.chunk) for turn in self.turns]
        return [Action(direction, turn.microbatch, self.chunks - 1 - turn.chunk) for turn in self.turns]

    def arriving(self, direction: Direction, index: int) -> Action | None:
        """Return whose input arrives when the rank has done its pass ``index``; None where nothing does.

        Inside the pipeline that is the next pass; where hidden states enter the pipeline (forward: the first rank)
        it is what the other end has just made, for its next chunk (``recv_tensor_from_previous_stage``).
        """
        passes = self.passes(direction)
        if self.pp_rank != self._entry(direction):
            return passes[index + 1] if index + 1 < len(passes) else None
        made = index - (self.pp_size - 1)
        return self._handed_on(passes[made]) if made >= 0 else None

    def is_sent(self, action: Action) -> bool:
        """Whether the result of ``action`` goes to another rank: not the loss, nor the gradient of the tokens."""
        exit_rank = self.pp_size - 1 - self._entry(action.direction)
        return self.pp_rank != exit_rank or self._handed_on(action) is not None

    @property
    def is_last_stage(self) -> bool:
        """Whether the loss is made here, in the last model chunk."""
        return self.pp_rank == self.pp_size - 1

    def _handed_on(self, action: Action) -> Action | None:
        """Return the pass of the next chunk that reads what ``action`` made at the pipeline's end."""
        chunk = action.chunk + (1 if action.direction == "forward" else -1)
        return action._replace(chunk=chunk) if 0 <= chunk < self.chunks else None

    def _entry(self, direction: Direction) -> int:
        return 0 if direction == "forward" else self.pp_size - 1


def interleaved_schedule(config: Config, state: ParallelState) -> InterleavedSchedule:
    """Return what the rank at ``state`` does."""
    return InterleavedSchedule(
        pp_size=state.pp_size,
        pp_rank=state.pp_rank,
        num_microbatches=config.num_microbatches,
        chunks=config.model_chunks,
        group_size=config.microbatch_group_size,
    )


def run_interleaved(
    step: StageStep, links: RingLinks, schedule: InterleavedSchedule, *, deallocate_outputs: bool
) -> None:
    """Run every microbatch of one iteration through all model chunks of this rank, forward and backward.

    As Megatron-Core with ``overlap_p2p_comm`` (Megatron-LM's default): after each pass its result leaves and what the
    next pass of that direction needs arrives, so that the buffer exists during the pass between them.
    """
    _Iteration(step, links, schedule, deallocate_outputs=deallocate_outputs).run()


class _Iteration:
    """What a rank holds during an iteration besides saved activations."""

    def __init__(
        self, step: StageStep, links: RingLinks, schedule: InterleavedSchedule, *, deallocate_outputs: bool
    ) -> None:
        self._step = step
        self._links = links
        self._schedule = schedule
        self._deallocate_outputs = deallocate_outputs
        self._arrived: dict[Action, torch.Tensor] = {}
        self._in_flight: defaultdict[int, deque[InFlight]] = defaultdict(deque)
        self._sent_output: torch.Tensor | None = None
        self._sent_gradient: torch.Tensor | None = None

    def run(self) -> None:
        first_backward = self._schedule.passes("backward")[0]
        if self._schedule.pp_rank > 0:
            self._shift("forward", None, self._schedule.passes("forward")[0])
        done: dict[Direction, int] = {"forward": 0, "backward": 0}
        for action in self._schedule.actions():
            arriving = self._schedule.arriving(action.direction, done[action.direction])
            done[action.direction] += 1
            if action.direction == "backward":
                self._backward(action, arriving)
                continue
            self._forward(action, arriving, keep_sent=done["forward"] > self._schedule.warmup)
            if done["forward"] == self._schedule.warmup and not self._schedule.is_last_stage:
                self._shift("backward", None, first_backward)

    def _forward(self, action: Action, arriving: Action | None, *, keep_sent: bool) -> None:
        """Run a forward; in the steady state (``keep_sent``) its output is freed only after the backward that follows.

        Upstream deallocates it before the next forward.
        """
        received = self._arrived.pop(action, None)
        output = self._step.forward(action, received)
        is_sent = self._schedule.is_sent(action)
        flight = InFlight.of(received, output, deallocate=self._deallocate_outputs and is_sent)
        self._in_flight[action.chunk].append(flight)
        self._shift("forward", output if is_sent else None, arriving)
        if keep_sent and is_sent:
            self._sent_output = output

    def _backward(self, action: Action, arriving: Action | None) -> None:
        """Run a backward; the gradient that it sends lives until the next backward has made its own, as upstream."""
        flight = self._in_flight[action.chunk].popleft()
        gradient = flight.backward(self._step, action, self._arrived.pop(action, None))
        self._sent_gradient = gradient if self._schedule.is_sent(action) else None
        self._shift("backward", self._sent_gradient, arriving)
        self._sent_output = None

    def _shift(self, direction: Direction, leaving: torch.Tensor | None, arriving: Action | None) -> None:
        buffer = self._links.shift(direction, leaving, arriving)
        if arriving is not None and buffer is not None:
            self._arrived[arriving] = buffer
