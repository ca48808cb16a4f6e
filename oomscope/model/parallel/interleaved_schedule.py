"""The interleaved schedule: each pipeline rank holds v model chunks, and works on them in turn.

Megatron-Core's (``pipeline_parallel/schedules.py::forward_backward_pipelining_with_interleaving``): microbatches take
their turns in groups of G, each chunk a whole group. The bubble is shorter and more is in flight: on rank r of p
``min(2(p - r - 1) + (v - 1)G + 1, mv)`` chunk passes.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass

import torch

from oomscope.model.parallel.p2p_communication import Action, Direction, Shift, StageLinks
from oomscope.model.parallel.schedules import InFlight, StageStep, Turn, turns, warmup_passes


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
        """All turns in order, the same on every rank."""
        return turns(self.num_microbatches, self.chunks, self.group_size)

    @property
    def warmup(self) -> int:
        """Forwards before the first backward's pair."""
        return warmup_passes(self.pp_size, self.pp_rank, self.num_microbatches, self.chunks, self.group_size)

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

    def _handed_on(self, action: Action) -> Action | None:
        """Return the pass of the next chunk that reads what ``action`` made at the pipeline's end."""
        chunk = action.chunk + (1 if action.direction == "forward" else -1)
        return action._replace(chunk=chunk) if 0 <= chunk < self.chunks else None

    def _entry(self, direction: Direction) -> int:
        return 0 if direction == "forward" else self.pp_size - 1


def run_interleaved(
    step: StageStep, links: StageLinks, schedule: InterleavedSchedule, *, deallocate_outputs: bool, overlap: bool = True
) -> None:
    """Run every microbatch of one iteration through all model chunks of this rank, forward and backward.

    With ``overlap`` (Megatron-Core's ``overlap_p2p_comm``, Megatron-LM's default) a pass's result leaves and what the
    next pass of that direction needs arrives after each pass, so that the buffer exists during the pass between them.
    Without, a forward and the backward beside it exchange what both directions need after the two (Megatron-Core
    ``pipeline_parallel/schedules.py``, ``send_forward_backward_recv_forward_backward``).
    """
    _Iteration(step, links, schedule, deallocate_outputs=deallocate_outputs, overlap=overlap).run()


class _Iteration:
    """What a rank holds during an iteration besides saved activations."""

    def __init__(
        self,
        step: StageStep,
        links: StageLinks,
        schedule: InterleavedSchedule,
        *,
        deallocate_outputs: bool,
        overlap: bool,
    ) -> None:
        self._step = step
        self._links = links
        self._schedule = schedule
        self._deallocate_outputs = deallocate_outputs
        self._overlap = overlap
        self._forwards = schedule.passes("forward")
        self._backwards = schedule.passes("backward")
        self._arrived: dict[Action, torch.Tensor] = {}
        self._in_flight: defaultdict[int, deque[InFlight]] = defaultdict(deque)
        self._sent_gradient: torch.Tensor | None = None

    def run(self) -> None:
        """Warm up, alternate, and do the backwards that are left."""
        schedule, warmup, total = self._schedule, self._schedule.warmup, len(self._forwards)
        if schedule.pp_rank > 0:
            self._shift(Shift("forward", None, self._forwards[0]))
        comes_from_elsewhere = schedule.pp_rank < schedule.pp_size - 1
        first_gradient = Shift("backward", None, self._backwards[0] if comes_from_elsewhere else None)
        with_last_output = not self._overlap and warmup < total
        for index in range(warmup):
            output = self._forward(index)
            gradients = [first_gradient] if with_last_output and index == warmup - 1 else []
            self._shift(self._after_forward(index, output), *gradients)
            del output
        if not with_last_output:
            self._shift(first_gradient)
        for index in range(warmup, total):
            self._alternate(index, index - warmup)
        for index in range(total - warmup, total):
            self._shift(self._after_backward(index, self._backward(index)))

    def _alternate(self, forward: int, backward: int) -> None:
        """Free the output only after the backward: upstream deallocates it before the next forward."""
        output = self._forward(forward)
        if self._overlap:
            self._shift(self._after_forward(forward, output))
            self._shift(self._after_backward(backward, self._backward(backward)))
        else:
            gradient = self._backward(backward)
            self._shift(self._after_forward(forward, output), self._after_backward(backward, gradient))

    def _forward(self, index: int) -> torch.Tensor | None:
        """Run a forward and return what is to be sent of it."""
        action = self._forwards[index]
        received = self._arrived.pop(action, None)
        output = self._step.forward(action, received)
        is_sent = self._schedule.is_sent(action)
        flight = InFlight.of(received, output, deallocate=self._deallocate_outputs and is_sent)
        self._in_flight[action.chunk].append(flight)
        return output if is_sent else None

    def _backward(self, index: int) -> torch.Tensor | None:
        """Run a backward and return what is to be sent of it; it lives until the next has made its own, as upstream."""
        action = self._backwards[index]
        flight = self._in_flight[action.chunk].popleft()
        gradient = flight.backward(self._step, action, self._arrived.pop(action, None))
        self._sent_gradient = gradient if self._schedule.is_sent(action) else None
        return self._sent_gradient

    def _after_forward(self, index: int, output: torch.Tensor | None) -> Shift:
        return Shift("forward", output, self._schedule.arriving("forward", index))

    def _after_backward(self, index: int, gradient: torch.Tensor | None) -> Shift:
        return Shift("backward", gradient, self._schedule.arriving("backward", index))

    def _shift(self, *shifts: Shift) -> None:
        for shift, buffer in zip(shifts, self._links.shift(*shifts), strict=True):
            if shift.arriving is not None and buffer is not None:
                self._arrived[shift.arriving] = buffer
