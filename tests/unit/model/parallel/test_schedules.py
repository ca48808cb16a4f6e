"""The 1F1B order, what is in flight, and what a stage keeps while it waits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oomscope.model.parallel.p2p_communication import Action
from oomscope.model.parallel.schedules import (
    in_flight_microbatches,
    one_forward_one_backward,
    warmup_microbatches,
)

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
