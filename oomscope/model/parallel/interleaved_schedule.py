"""The interleaved schedule: each pipeline rank holds v model chunks, and works on them in turn.

Megatron-Core's (``pipeline_parallel/schedules.py::forward_backward_pipelining_with_interleaving``): microbatches take
their turns in groups of G, each chunk a whole group. The bubble is shorter and more is in flight: on rank r of p
``min(2(p - r - 1) + (v - 1)G + 1, mv)`` chunk passes.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from oomscope.model.parallel.p2p_communication import Action, Direction, Shift, StageLinks
from oomscope.model.parallel.schedules import InFlight, StageStep, Turn, alternating, turns, warmup_passes


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

    def actions(self) -> Iterator[Action]:
        """Yield the rank's actions in order: warm-up, steady state, cool-down."""
        return alternating(self.passes("forward"), self.passes("backward"), self.warmup)

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
    Without, a forward and the backward beside it exchange what both directions need after the two.
    """
    kind = _Overlapping if overlap else _Exchanging
    kind(step, links, schedule, deallocate_outputs=deallocate_outputs).run()


class _Iteration:
    """What a rank holds during an iteration besides saved activations."""

    def __init__(
        self, step: StageStep, links: StageLinks, schedule: InterleavedSchedule, *, deallocate_outputs: bool
    ) -> None:
        self._step = step
        self._links = links
        self._schedule = schedule
        self._deallocate_outputs = deallocate_outputs
        self._forwards = schedule.passes("forward")
        self._backwards = schedule.passes("backward")
        self._arrived: dict[Action, torch.Tensor] = {}
        self._in_flight: defaultdict[int, deque[InFlight]] = defaultdict(deque)
        self._sent_gradient: torch.Tensor | None = None

    def run(self) -> None:
        """Warm up, alternate, and do the backwards that are left."""
        warmup, total = self._schedule.warmup, len(self._forwards)
        if self._schedule.pp_rank > 0:
            self._shift(Shift("forward", None, self._forwards[0]))
        self._warm_up()
        for index in range(warmup, total):
            self._alternate(index, index - warmup)
        for index in range(total - warmup, total):
            gradient = self._backward(index)
            self._shift(self._after_backward(index, gradient))

    def _warm_up(self) -> None:
        raise NotImplementedError

    def _alternate(self, forward: int, backward: int) -> None:
        """Run the two passes of these numbers; another rank may wait for either's result."""
        raise NotImplementedError

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

    @property
    def _first_gradient(self) -> Action | None:
        """The backward whose gradient comes from another rank before this one has begun with backwards."""
        return self._backwards[0] if self._schedule.pp_rank < self._schedule.pp_size - 1 else None

    def _shift(self, *shifts: Shift) -> None:
        for shift, buffer in zip(shifts, self._links.shift(*shifts), strict=True):
            if shift.arriving is not None and buffer is not None:
                self._arrived[shift.arriving] = buffer


class _Overlapping(_Iteration):
    """Sends and receives after each pass, while the next one runs."""

    def _warm_up(self) -> None:
        for index in range(self._schedule.warmup):
            self._shift(self._after_forward(index, self._forward(index)))
        self._shift(Shift("backward", None, self._first_gradient))

    def _alternate(self, forward: int, backward: int) -> None:
        """Free the output only after the backward: upstream deallocates it before the next forward."""
        output = self._forward(forward)
        self._shift(self._after_forward(forward, output))
        self._shift(self._after_backward(backward, self._backward(backward)))
        del output


class _Exchanging(_Iteration):
    """Sends and receives between pairs of passes, and waits for it.

    Source: Megatron-Core ``pipeline_parallel/schedules.py``, ``send_forward_backward_recv_forward_backward``.
    """

    def _warm_up(self) -> None:
        """With the last output the first gradient arrives, unless no forward is left that it could wait for."""
        last, alternates = self._schedule.warmup - 1, self._schedule.warmup < len(self._forwards)
        for index in range(self._schedule.warmup):
            output = self._forward(index)
            gradient = self._first_gradient if index == last and alternates else None
            self._shift(self._after_forward(index, output), Shift("backward", None, gradient))
            del output
        if not alternates:
            self._shift(Shift("backward", None, self._first_gradient))

    def _alternate(self, forward: int, backward: int) -> None:
        output = self._forward(forward)
        gradient = self._backward(backward)
        self._shift(self._after_forward(forward, output), self._after_backward(backward, gradient))
