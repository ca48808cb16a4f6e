"""How Megatron-FSDP groups parameters, and where it puts them in a bucket."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from oomscope.model.distributed.fsdp_groups import lay_out_group, parameter_groups


def weight(*shape: int, dtype: torch.dtype = torch.float32, expert: bool = False) -> nn.Parameter:
    param = nn.Parameter(torch.empty(shape, dtype=dtype))
    param.allreduce = not expert  # type: ignore[attr-defined]
    return param


def test_units_and_kinds_are_apart_and_long_rows_come_first() -> None:
    words, fc1, fc2, expert, norm = weight(8, 4), weight(16, 4), weight(4, 16), weight(2, 4, 8, expert=True), weight(4)
    router = weight(4, 4, dtype=torch.float64)
    groups = parameter_groups([(words, None), (fc1, 0), (fc2, 0), (expert, 0), (router, 0), (norm, None)])
    assert [(group.unit, group.expert) for group in groups] == [(None, False), (0, False), (0, True), (0, False)]
    assert [len(group.params) for group in groups] == [2, 2, 1, 1]
    assert groups[0].params[0] is words
    assert groups[1].params[0] is fc2
    assert [group.chunk for group in groups] == [4, 16, 8, 4]


def test_chunks_hold_whole_rows_of_all_matrices() -> None:
    (group,) = parameter_groups([(weight(10, 6), None), (weight(9, 4), None), (weight(3), None)])
    assert group.chunk == 12


def test_buckets_outside_of_units_are_closed_when_full() -> None:
    params = [weight(4, 4) for _ in range(5)]
    outside = parameter_groups([(param, None) for param in params], bucket_size=30)
    assert [len(group.params) for group in outside] == [2, 2, 1]
    assert len(parameter_groups([(param, 0) for param in params], bucket_size=30)) == 1


def test_small_parameters_fill_gaps() -> None:
    spans, numel = lay_out_group([20, 13, 3, 2], chunk=8, shards=2)
    assert spans[0] == (0, 20)
    assert spans[2] == (20, 23), "in what is left of the third chunk"
    assert spans[1].start % 8 == 0
    assert spans[3] == (37, 39)
    assert numel == 48


def test_odd_ends_share_a_chunk() -> None:
    spans, numel = lay_out_group([20, 12], chunk=8, shards=None)
    assert spans == [(0, 20), (20, 32)]
    assert numel == 32


@given(
    st.lists(st.integers(1, 200), min_size=1, max_size=12),
    st.integers(1, 32),
    st.one_of(st.none(), st.integers(1, 8)),
)
def test_parameters_never_overlap_and_the_end_is_aligned(numels: list[int], chunk: int, shards: int | None) -> None:
    spans, numel = lay_out_group(numels, chunk=chunk, shards=shards)
    assert [span.numel for span in spans] == numels
    ordered = sorted(spans)
    assert all(before.end <= after.start for before, after in pairwise(ordered))
    assert ordered[-1].end <= numel
    assert numel % ((shards or 0) * chunk or 1) == 0
    assert numel <= sum(-(-size // chunk) * chunk for size in numels) + (shards or 0) * chunk
