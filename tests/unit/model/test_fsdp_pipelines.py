"""What is gathered ahead and let go, and how long whole gradients wait."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from oomscope.model.base.observer import Silent
from oomscope.model.distributed.fsdp_buffers import ShardedBuffer
from oomscope.model.distributed.fsdp_groups import ParameterGroup
from oomscope.model.distributed.fsdp_pipelines import GatherPipeline, ReducePipeline, Status

CPU = torch.device("cpu")
SIZE = 8
UNITS = (None, 0, 1, 2)


def groups() -> list[ParameterGroup]:
    return [ParameterGroup(unit, False, torch.float32, [nn.Parameter(torch.ones(2, 4))]) for unit in UNITS]


def buffer(group: ParameterGroup, dtype: torch.dtype = torch.float32) -> ShardedBuffer:
    made = ShardedBuffer(
        group,
        shards=1,
        rank=0,
        ranks=None,
        is_distributed=False,
        dtype=dtype,
        role="parameter",
        observer=Silent(),
    )
    made.keep(torch.zeros(made.kept, dtype=dtype))
    return made


def gathering(ahead: int) -> GatherPipeline:
    made = groups()
    return GatherPipeline(made, [buffer(group) for group in made], ahead=ahead, device=CPU)


def gathered(pipeline: GatherPipeline) -> list[int]:
    return [index for index, status in enumerate(pipeline.status) if status is not Status.EMPTY]


@pytest.mark.parametrize(
    ("ahead", "forward", "expected"),
    [
        (0, True, [1]),
        (1, True, [1, 2]),
        (SIZE, True, [1, 2]),
        (SIZE + 1, True, [1, 2, 3]),
        (1000, True, [1, 2, 3]),
        (1000, None, [1]),
        (1, False, [0, 1]),
    ],
)
def test_buckets_are_fetched_ahead_in_the_direction_of_the_pass(
    ahead: int, forward: bool | None, expected: list[int]
) -> None:
    pipeline = gathering(ahead)
    pipeline.gather([1], forward=forward)
    assert gathered(pipeline) == expected


def test_a_unit_let_go_lazily_stays_until_the_next_gather() -> None:
    pipeline = gathering(0)
    pipeline.gather([1], forward=True)
    pipeline.release([1], lazily=True)
    assert gathered(pipeline) == [1]
    pipeline.gather([2], forward=True)
    assert gathered(pipeline) == [2]


def test_a_unit_needed_again_is_not_let_go() -> None:
    pipeline = gathering(0)
    pipeline.gather([1], forward=True)
    pipeline.release([1], lazily=True)
    pipeline.gather([1], forward=None)
    pipeline.gather([2], forward=None)
    assert gathered(pipeline) == [1, 2]


def test_a_reset_keeps_what_is_in_no_unit_and_gathers_it_anew() -> None:
    pipeline = gathering(1000)
    pipeline.gather([0], forward=True)
    assert gathered(pipeline) == [0, 1, 2, 3]
    pipeline.reset()
    assert pipeline.status == [Status.KEPT, *[Status.EMPTY] * 3]
    pipeline.gather([0], forward=None)
    pipeline.wait([0])
    assert pipeline.status[0] is Status.READY


def reducing(*, comm_dtype: torch.dtype | None = None, capacity: int = 0) -> tuple[ReducePipeline, list[ShardedBuffer]]:
    buffers = [buffer(group) for group in groups()]
    for made in buffers:
        made.data.fill_(2)
    together = [{index} for index in range(len(buffers))]
    pipeline = ReducePipeline(buffers, together, comm_dtype=comm_dtype, scale=0.5, capacity=capacity, device=CPU)
    return pipeline, buffers


@pytest.mark.parametrize("comm_dtype", [None, torch.bfloat16])
def test_the_last_gradient_of_a_bucket_sets_off_its_reduction(comm_dtype: torch.dtype | None) -> None:
    pipeline, buffers = reducing(comm_dtype=comm_dtype)
    pipeline.arrive(2)
    assert buffers[2].data.tolist() == [1.0] * SIZE
    assert buffers[1].data.tolist() == [2.0] * SIZE
    pipeline.reset()


def test_a_copy_for_communication_waits_for_its_place_in_the_queue() -> None:
    pipeline, buffers = reducing(comm_dtype=torch.bfloat16, capacity=SIZE)
    waiting = []
    for index in (3, 2, 1):
        pipeline.arrive(index)
        waiting.append(sum(made.allocated for made in buffers))
    assert waiting == [1, 2, 2]
    pipeline.reset()
    assert not any(made.allocated for made in buffers)


def test_all_at_once_where_nothing_overlaps() -> None:
    pipeline, buffers = reducing()
    pipeline.reduce_all()
    assert all(made.data.tolist() == [1.0] * SIZE for made in buffers)
