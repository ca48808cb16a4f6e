"""The order of 1F1B and of the interleaved schedule, and that all ranks together come to the end."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from oomscope.model.parallel.interleaved_schedule import InterleavedSchedule, run_interleaved
from oomscope.model.parallel.p2p_communication import Action, Shift
from oomscope.model.parallel.schedules import Turn, one_forward_one_backward


class Shape(NamedTuple):
    pp_size: int
    num_microbatches: int
    chunks: int
    group_size: int


@st.composite
def shapes(draw: st.DrawFn, largest: int = 6) -> Shape:
    """What Megatron-Core accepts: p ≤ G ≤ m, and a last group of none or of at least p."""
    pp_size = draw(st.integers(2, largest))
    group_size = draw(st.integers(pp_size, pp_size + 3))
    last_group = draw(st.just(0) | st.integers(pp_size, group_size))
    num_microbatches = draw(st.integers(1, 3)) * group_size + last_group % group_size
    return Shape(pp_size, num_microbatches, draw(st.integers(2, 4)), group_size)


def schedule_of(shape: Shape, rank: int) -> InterleavedSchedule:
    return InterleavedSchedule(shape.pp_size, rank, shape.num_microbatches, shape.chunks, shape.group_size)


def every_rank(shape: Shape) -> list[InterleavedSchedule]:
    return [schedule_of(shape, rank) for rank in range(shape.pp_size)]


def test_the_table_in_megatron_cores_documentation() -> None:
    """``get_schedule_table`` for two stages, groups of three, five microbatches, two chunks."""
    turns = schedule_of(Shape(pp_size=2, num_microbatches=5, chunks=2, group_size=3), 0).turns
    assert [turn.microbatch for turn in turns] == [0, 1, 2, 0, 1, 2, 3, 4, 3, 4]
    assert [turn.chunk for turn in turns] == [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]
    assert turns[3] == Turn(0, 1)


@given(shapes(), st.data())
def test_every_chunk_takes_every_microbatch_once_each_way_and_in_order(shape: Shape, data: st.DataObject) -> None:
    actions = list(schedule_of(shape, data.draw(st.integers(0, shape.pp_size - 1))).actions())
    for direction in ("forward", "backward"):
        for chunk in range(shape.chunks):
            passes = [a.microbatch for a in actions if (a.direction, a.chunk) == (direction, chunk)]
            assert passes == list(range(shape.num_microbatches))
    place = {action: index for index, action in enumerate(actions)}
    forwards = [action for action in actions if action.direction == "forward"]
    assert all(place[action] < place[action._replace(direction="backward")] for action in forwards)


class Batch(NamedTuple):
    """What a rank sends and receives together."""

    shifts: tuple[Shift, ...]


class Recorder:
    """A rank that notes its passes and its batches, and receives at once."""

    def __init__(self, schedule: InterleavedSchedule) -> None:
        self.schedule = schedule
        self.log: list[Action | Batch] = []

    def forward(self, action: Action, received: torch.Tensor | None) -> torch.Tensor:
        self.log.append(action)
        is_input = self.schedule.pp_rank == action.chunk == 0
        assert (received is None) == is_input, "an input came late, or came where none was due"
        output = 2 * (received if received is not None else torch.ones(2, requires_grad=True))
        return output if self.schedule.is_sent(action) else output.sum()

    def backward(self, action: Action, output: object, output_grad: torch.Tensor | None) -> None:
        self.log.append(action)
        is_last_stage = self.schedule.pp_rank == self.schedule.pp_size - 1
        is_loss = is_last_stage and action.chunk == self.schedule.chunks - 1
        assert (output_grad is None) == is_loss
        torch.autograd.backward(output, output_grad)  # type: ignore[arg-type]

    def shift(self, *shifts: Shift) -> list[torch.Tensor | None]:
        moving = [shift for shift in shifts if shift.leaving is not None or shift.arriving is not None]
        if moving:
            left = [None if shift.leaving is None else shift.leaving.detach().clone() for shift in moving]
            kept = (shift._replace(leaving=tensor) for shift, tensor in zip(moving, left, strict=True))
            self.log.append(Batch(tuple(kept)))
        arriving = [shift.arriving for shift in shifts]
        return [a if a is None else torch.ones(2).requires_grad_(a.direction == "forward") for a in arriving]


def record(schedule: InterleavedSchedule, *, overlap: bool = True) -> list[Action | Batch]:
    recorder = Recorder(schedule)
    run_interleaved(recorder, recorder, schedule, deallocate_outputs=True, overlap=overlap)  # type: ignore[arg-type]
    return recorder.log


@given(shapes(largest=5), st.booleans())
def test_the_ranks_together_run_to_the_end(shape: Shape, overlap: bool) -> None:
    """Each batch waits for its partners' batches, and what arrives is what the receiver takes it for."""
    assume(overlap or shape.pp_size > 2)  # the rules refuse it: two tensors would go the same way in one batch
    logs = [record(schedule, overlap=overlap) for schedule in every_rank(shape)]
    sent: defaultdict[Link, list[Action]] = defaultdict(list)
    expected: defaultdict[Link, list[Action]] = defaultdict(list)
    places = [0] * shape.pp_size
    posted: list[list[tuple[Place, Place]] | None] = [None] * shape.pp_size
    is_moving = True
    while is_moving:
        is_moving = False
        for rank, log in enumerate(logs):
            while places[rank] < len(log):
                entry = log[places[rank]]
                if isinstance(entry, Batch):
                    if posted[rank] is None:
                        before = log[: places[rank]]
                        posted[rank] = [post(shape, rank, s, latest(before, s), sent, expected) for s in entry.shifts]
                        is_moving = True
                    if any(
                        (sending is not None and len(expected[sending[0]]) < sending[1])
                        or (receiving is not None and len(sent[receiving[0]]) < receiving[1])
                        for sending, receiving in posted[rank]
                    ):
                        break
                    posted[rank] = None
                places[rank] += 1
                is_moving = True
    assert places == [len(log) for log in logs], "deadlock"
    assert sent == expected, "a tensor was taken for another"


Link = tuple[int, int]
"""From which rank to which."""
Place = tuple[Link, int] | None
"""The n-th tensor of a link."""


def latest(before: list[Action | Batch], shift: Shift) -> Action | None:
    """Return the pass whose result ``shift`` sends."""
    if shift.leaving is None:
        return None
    passes = (entry for entry in reversed(before) if isinstance(entry, Action))
    return next(action for action in passes if action.direction == shift.direction)


def post(
    shape: Shape,
    rank: int,
    shift: Shift,
    made: Action | None,
    sent: defaultdict[Link, list[Action]],
    expected: defaultdict[Link, list[Action]],
) -> tuple[Place, Place]:
    """Put the tensors on the links; return which of a link's sends and receives they are."""
    ahead = 1 if shift.direction == "forward" else -1
    sending = receiving = None
    if made is not None:
        link = (rank, (rank + ahead) % shape.pp_size)
        wraps = not 0 <= rank + ahead < shape.pp_size
        sent[link].append(made._replace(chunk=made.chunk + ahead * wraps))
        sending = (link, len(sent[link]))
    if shift.arriving is not None:
        link = ((rank - ahead) % shape.pp_size, rank)
        expected[link].append(shift.arriving)
        receiving = (link, len(expected[link]))
    return sending, receiving


stages = st.integers(1, 12).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, p - 1)))


@given(stages, st.integers(1, 40))
def test_every_microbatch_goes_forward_then_backward_in_order(stage: tuple[int, int], num_microbatches: int) -> None:
    actions = list(one_forward_one_backward(*stage, num_microbatches))
    for direction in ("forward", "backward"):
        assert [a.microbatch for a in actions if a.direction == direction] == list(range(num_microbatches))
    for microbatch in range(num_microbatches):
        assert actions.index(Action("forward", microbatch)) < actions.index(Action("backward", microbatch))
