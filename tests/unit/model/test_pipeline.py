"""The 1F1B order, what is in flight, and what a stage keeps while it waits."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oomscope.model.parallel.p2p_communication import Action
from oomscope.model.parallel.parallel_state import ParallelState
from oomscope.model.parallel.schedules import (
    in_flight_microbatches,
    one_forward_one_backward,
    run_one_forward_one_backward,
)
from oomscope.model.parallel.turns import warmup_microbatches

stages = st.integers(1, 12).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, p - 1)))
microbatches = st.integers(1, 40)


@given(stages, microbatches)
def test_at_most_p_minus_r_microbatches_are_in_flight(stage: tuple[int, int], num_microbatches: int) -> None:
    pp_size, pp_rank = stage
    live = peak = 0
    for action in one_forward_one_backward(pp_size, pp_rank, num_microbatches):
        live += 1 if action.direction == "forward" else -1
        peak = max(peak, live)
    assert live == 0
    assert (
        peak == in_flight_microbatches(pp_size, pp_rank, num_microbatches) == min(pp_size - pp_rank, num_microbatches)
    )


@given(stages, microbatches)
def test_every_microbatch_goes_forward_then_backward_in_order(stage: tuple[int, int], num_microbatches: int) -> None:
    actions = list(one_forward_one_backward(*stage, num_microbatches))
    for direction in ("forward", "backward"):
        assert [a.microbatch for a in actions if a.direction == direction] == list(range(num_microbatches))
    for microbatch in range(num_microbatches):
        assert actions.index(Action("forward", microbatch)) < actions.index(Action("backward", microbatch))
    warmup = warmup_microbatches(*stage, num_microbatches)
    assert all(action.direction == "forward" for action in actions[:warmup])


@given(st.integers(1, 8), st.integers(1, 20))
def test_the_stages_together_run_to_the_end(pp_size: int, num_microbatches: int) -> None:
    """Play all stages at once: each waits until its neighbour has made what it needs."""
    todo = [list(one_forward_one_backward(pp_size, rank, num_microbatches)) for rank in range(pp_size)]
    done: set[tuple[int, Action]] = set()
    while any(todo):
        ready = [rank for rank, actions in enumerate(todo) if actions and _ready(actions[0], rank, pp_size, done)]
        assert ready, "deadlock"
        for rank in ready:
            done.add((rank, todo[rank].pop(0)))


def _ready(action: Action, rank: int, pp_size: int, done: set[tuple[int, Action]]) -> bool:
    source = rank - 1 if action.direction == "forward" else rank + 1
    return not 0 <= source < pp_size or (source, action) in done


class MiddleStage:
    """Doubles what it receives, and stands in for its neighbours: every transfer is logged."""

    def __init__(self, state: ParallelState, watch: Callable[[], None] = lambda: None) -> None:
        self.state = state
        self.log: list[str] = []
        self.sent: list[torch.Tensor] = []
        self.outputs: list[weakref.ref[torch.Tensor]] = []
        self.kept: list[bool] = []

    def forward(self, action: Action, received: torch.Tensor | None) -> torch.Tensor:
        self.log.append(f"F{action.microbatch}")
        output = 2 * (received if received is not None else torch.ones(2, requires_grad=True))
        self.outputs.append(weakref.ref(output))
        return output.sum() if self.state.is_last_stage else output

    def backward(self, action: Action, output: object, output_grad: torch.Tensor | None) -> None:
        self.log.append(f"B{action.microbatch}")
        self.kept.append(self.outputs[action.microbatch]() is not None)
        torch.autograd.backward(output, output_grad)  # type: ignore[arg-type]

    def receive(self, action: Action) -> torch.Tensor | None:
        source = self.state.pp_rank + (-1 if action.direction == "forward" else 1)
        if not 0 <= source < self.state.pp_size:
            return None
        self.log.append(f"recv {action.direction[0]}{action.microbatch}")
        return torch.full((2,), float(action.microbatch)).requires_grad_(action.direction == "forward")

    def send(self, action: Action, tensor: torch.Tensor | None) -> None:
        destination = self.state.pp_rank + (1 if action.direction == "forward" else -1)
        if 0 <= destination < self.state.pp_size:
            assert tensor is not None
            self.log.append(f"send {action.direction[0]}{action.microbatch}")
            self.sent.append(tensor.detach().clone())

    def exchange(self, action: Action, tensor: torch.Tensor | None, following: Action) -> torch.Tensor | None:
        self.log.append("(")
        self.send(action, tensor)
        received = self.receive(following)
        self.log.append(")")
        return received


def run(pp_rank: int, pp_size: int, num_microbatches: int, *, deallocate: bool = True) -> MiddleStage:
    state = ParallelState(pp_rank=pp_rank, pp_size=pp_size)
    stage = MiddleStage(state)
    run_one_forward_one_backward(
        stage, stage, state=state, num_microbatches=num_microbatches, deallocate_outputs=deallocate  # type: ignore[arg-type]
    )  # fmt: skip
    return stage


def test_a_middle_stage_batches_transfers_with_the_same_neighbour() -> None:
    log = run(1, 3, 3).log
    assert log == [
        "recv f0", "F0", "send f0", "recv f1", "F1", "(", "send f1", "recv b0", ")", "B0",
        "(", "send b0", "recv f2", ")", "F2", "(", "send f2", "recv b1", ")", "B1", "send b1", "recv b2", "B2",
        "send b2",
    ]  # fmt: skip


def test_gradients_are_sent_back() -> None:
    sent = run(1, 3, 2).sent
    assert [tensor.tolist() for tensor in sent] == [[0.0, 0.0], [2.0, 2.0], [0.0, 0.0], [2.0, 2.0]]


@pytest.mark.parametrize("deallocate", [True, False])
def test_sent_outputs_are_freed_on_demand(deallocate: bool) -> None:
    assert run(1, 3, 4, deallocate=deallocate).kept == [not deallocate] * 4


def test_without_a_pipeline_nothing_is_sent() -> None:
    assert [entry for entry in run(0, 1, 2).log if entry not in "()"] == ["F0", "B0", "F1", "B1"]


def test_fewer_microbatches_than_stages() -> None:
    assert [entry for entry in run(0, 4, 2).log if entry[0] in "FB"] == ["F0", "F1", "B0", "B1"]
