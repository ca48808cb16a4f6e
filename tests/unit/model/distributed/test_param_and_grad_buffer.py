"""Where gradients lie, and that shards cover every parameter once."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from oomscope.config.schema import Config, ModelConfig, OptimizerConfig, ParallelConfig, PrecisionConfig
from oomscope.model.base.observer import NullObserver
from oomscope.model.distributed.param_and_grad_buffer import build_grad_buffers, lay_out
from oomscope.model.parallel.parallel_state import ParallelState, Place

numels = st.lists(st.integers(1, 1000), min_size=1, max_size=20)
bucket_sizes = st.none() | st.integers(1, 2000)


def make_config(*, distributed: bool = False, overlap: bool = False, **precision: bool) -> Config:
    return Config(
        model=ModelConfig(num_layers=1, hidden_size=8, num_attention_heads=2),
        parallel=ParallelConfig(),
        optimizer=OptimizerConfig(use_distributed_optimizer=distributed, overlap_grad_reduce=overlap),
        precision=PrecisionConfig(**precision),
    )


@given(numels, bucket_sizes, st.none() | st.integers(1, 12), st.data())
def test_layout(numels: list[int], bucket_size: int | None, shards: int | None, data: st.DataObject) -> None:
    own = [data.draw(st.booleans()) for _ in numels]
    layout = lay_out(numels, shards=shards, bucket_size=bucket_size, own_bucket=own)
    assert [span.numel for span in layout.params] == numels
    assert all(left.end <= right.start for left, right in zip(layout.params, layout.params[1:], strict=False))
    assert [bucket.start for bucket in layout.buckets] == [0, *(bucket.end for bucket in layout.buckets[:-1])]
    for span, separate in zip(layout.params, own, strict=True):
        (home,) = [bucket for bucket in layout.buckets if bucket.start <= span.start and span.end <= bucket.end]
        if separate:
            assert [p for p in layout.params if home.start <= p.start < home.end] == [span]
    if shards is None:
        assert layout.numel == sum(numels)
    else:
        assert all(span.start % 64 == 0 for span in layout.params)
        assert all(bucket.end % math.lcm(shards, 128) == 0 for bucket in layout.buckets)
        slack = 64 * len(numels) + math.lcm(shards, 128) * (len(layout.buckets) + sum(own))
        assert layout.numel <= sum(numels) + slack


@given(numels, st.integers(1, 6))
def test_shards_cover_each_parameter_once(numels: list[int], ranks: int) -> None:
    model = nn.ParameterList(nn.Parameter(torch.zeros(numel)) for numel in numels)
    owned = []
    for rank in range(ranks):
        state = ParallelState(dp_cp=Place(rank, ranks), intra_dp_cp=Place(rank, ranks))
        (buffer,) = build_grad_buffers([model], make_config(distributed=True), state, NullObserver())
        owned.append([range(*buffer.owned(index)) for index in range(len(numels))])
    for index, numel in enumerate(reversed(numels)):
        assert sorted(element for mine in owned for element in mine[index]) == list(range(numel))
