"""The order of 1F1B and of the interleaved schedule; that ranks meet, ``test_parallel_parity.py`` holds."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from oomscope.model.parallel.interleaved_schedule import InterleavedSchedule
from oomscope.model.parallel.p2p_communication import Action
from oomscope.model.parallel.schedules import Turn, one_forward_one_backward


class Shape(NamedTuple):
    pp_size: int
    num_microbatches: int
    chunks: int
    group_size: int


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """What Megatron-Core accepts: p ≤ G ≤ m, and a last group of none or of at least p."""
    pp_size = draw(st.integers(2, 6))
    group_size = draw(st.integers(pp_size, pp_size + 3))
    last_group = draw(st.just(0) | st.integers(pp_size, group_size))
    num_microbatches = draw(st.integers(1, 3)) * group_size + last_group % group_size
    return Shape(pp_size, num_microbatches, draw(st.integers(2, 4)), group_size)


def schedule_of(shape: Shape, rank: int) -> InterleavedSchedule:
    return InterleavedSchedule(shape.pp_size, rank, shape.num_microbatches, shape.chunks, shape.group_size)


def test_the_table_in_megatron_cores_documentation() -> None:
    """``get_schedule_table`` for two stages, groups of three, five microbatches, two chunks."""
    turns = schedule_of(Shape(pp_size=2, num_microbatches=5, chunks=2, group_size=3), 0).turns
    assert [turn.microbatch for turn in turns] == [0, 1, 2, 0, 1, 2, 3, 4, 3, 4]
    assert [turn.chunk for turn in turns] == [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]
    assert turns[3] == Turn(0, 1)


@given(shapes(), st.data())
def test_every_chunk_takes_every_microbatch_once_each_way_and_in_order(shape: Shape, data: st.DataObject) -> None:
    schedule = schedule_of(shape, data.draw(st.integers(0, shape.pp_size - 1)))
    forwards, backwards = schedule.passes("forward"), schedule.passes("backward")
    for passes in (forwards, backwards):
        for chunk in range(shape.chunks):
            assert [a.microbatch for a in passes if a.chunk == chunk] == list(range(shape.num_microbatches))
    for index, action in enumerate(forwards):
        assert index <= schedule.warmup + backwards.index(action._replace(direction="backward"))


stages = st.integers(1, 12).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, p - 1)))


@given(stages, st.integers(1, 40))
def test_every_microbatch_goes_forward_then_backward_in_order(stage: tuple[int, int], num_microbatches: int) -> None:
    actions = list(one_forward_one_backward(*stage, num_microbatches))
    for direction in ("forward", "backward"):
        assert [a.microbatch for a in actions if a.direction == direction] == list(range(num_microbatches))
    for microbatch in range(num_microbatches):
        assert actions.index(Action("forward", microbatch)) < actions.index(Action("backward", microbatch))
