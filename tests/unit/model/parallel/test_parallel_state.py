"""Rank order, groups along each axis, and the making of groups in one process of a large world."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.testing._internal.distributed.fake_pg import FakeStore

from oomscope.config.schema import Config, ModelConfig, OptimizerConfig, ParallelConfig
from oomscope.errors import UsageError
from oomscope.model.parallel import parallel_state as mesh


def make_config(**parallel: int) -> Config:
    names = {
        "tp": "tensor_model_parallel_size",
        "cp": "context_parallel_size",
        "pp": "pipeline_model_parallel_size",
        "dp": "data_parallel_size",
        "ep": "expert_model_parallel_size",
        "etp": "expert_tensor_parallel_size",
    }
    model = ModelConfig(num_layers=8, hidden_size=64, num_attention_heads=8)
    optimizer = OptimizerConfig(num_distributed_optimizer_instances=parallel.pop("instances", 1))
    mapping = bool(parallel.pop("mapping", False))
    sizes = {names[key]: value for key, value in parallel.items()}
    return Config(model=model, parallel=ParallelConfig(**sizes, use_tp_pp_dp_mapping=mapping), optimizer=optimizer)


sizes = st.sampled_from([1, 2, 3, 4])
worlds = st.builds(make_config, tp=sizes, cp=sizes, pp=sizes, dp=sizes, mapping=st.booleans())


def test_groups_of_megatrons_documented_example() -> None:
    """The 16-GPU example in the docstring of Megatron-Core's ``initialize_model_parallel`` (TP 2, PP 4)."""
    config = make_config(tp=2, pp=4, dp=2)
    assert list(mesh.groups(config, "dp")) == [
        (0, 2), (1, 3), (4, 6), (5, 7), (8, 10), (9, 11), (12, 14), (13, 15),
    ]  # fmt: skip
    assert list(mesh.groups(config, "tp")) == [(2 * i, 2 * i + 1) for i in range(8)]
    assert list(mesh.groups(config, "pp")) == [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)]


def test_stages_may_come_before_replicas() -> None:
    """Order ``tp-cp-ep-pp-dp`` of Megatron-LM training/initialize.py."""
    config = make_config(tp=2, pp=4, dp=2, mapping=True)
    assert list(mesh.groups(config, "pp")) == [(0, 2, 4, 6), (1, 3, 5, 7), (8, 10, 12, 14), (9, 11, 13, 15)]
    assert list(mesh.groups(config, "dp")) == [(rank, rank + 8) for rank in range(8)]
    assert [mesh.stage_of(config, rank) for rank in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert mesh.stage_representatives(config) == [0, 2, 4, 6]


@given(worlds, st.sampled_from(get_args(mesh.Axis)))
def test_groups_partition_the_world(config: Config, axis: mesh.Axis) -> None:
    members = [rank for ranks in mesh.groups(config, axis) for rank in ranks]
    assert sorted(members) == list(range(config.parallel.world_size))
    for ranks in mesh.groups(config, axis):
        assert list(ranks) == sorted(ranks)
        assert all(mesh.group_of(config, rank, axis) == ranks for rank in ranks)


@given(worlds, st.data())
def test_groups_along_two_axes_share_one_rank(config: Config, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, config.parallel.world_size - 1))
    for one, two in itertools.combinations(("tp", "cp", "dp", "pp"), 2):
        assert set(mesh.group_of(config, rank, one)) & set(mesh.group_of(config, rank, two)) == {rank}
    assert mesh.group_of(config, rank, "pp")[mesh.stage_of(config, rank)] == rank


def test_experts_cut_the_stage_in_their_own_way() -> None:
    config = make_config(tp=2, dp=4, ep=2, etp=1)
    assert mesh.group_of(config, 5, "ep") == (4, 5)
    assert mesh.group_of(config, 5, "expert_tp") == (5,)
    assert mesh.group_of(config, 5, "expert_dp") == (1, 3, 5, 7)
    tensor_parallel_experts = make_config(tp=2, dp=4, ep=2)
    assert mesh.group_of(tensor_parallel_experts, 5, "ep") == (5, 7)
    assert mesh.group_of(tensor_parallel_experts, 5, "expert_tp") == (4, 5)
    assert mesh.group_of(tensor_parallel_experts, 5, "expert_dp") == (1, 5)


def test_optimizer_instances_are_runs_of_replicas() -> None:
    """Megatron-Core ``parallel_state.py``: slices of the ranks of dp-cp, and of those of the experts' dp."""
    config = make_config(tp=2, cp=2, dp=4, pp=2, ep=2, etp=1, instances=2)
    assert mesh.group_of(config, 21, "dp_cp") == (17, 19, 21, 23, 25, 27, 29, 31)
    assert mesh.group_of(config, 21, "intra_dp_cp") == (17, 19, 21, 23)
    assert mesh.group_of(config, 21, "intra_expert_dp") == (17, 19, 21, 23)
    assert mesh.group_of(config, 20, "intra_expert_dp") == (16, 18, 20, 22)
    assert mesh.group_of(config, 21, "inter_dist_opt") == (21, 29)


def test_levels_of_context_parallelism_are_those_of_megatrons_example() -> None:
    """The 16 ranks in the docstring of Megatron-Core's ``create_hierarchical_groups``, at two levels."""
    config = Config(
        model=ModelConfig(num_layers=8, hidden_size=64, num_attention_heads=8),
        parallel=ParallelConfig(
            context_parallel_size=16, cp_comm_type="a2a+p2p", hierarchical_context_parallel_sizes=(4, 4)
        ),
    )
    assert mesh.group_of(config, 6, "cp_a2a") == (4, 5, 6, 7)
    assert mesh.group_of(config, 6, "cp_p2p") == (2, 6, 10, 14)


def test_embedding_group_joins_first_and_last_stage() -> None:
    config = make_config(tp=2, pp=3)
    assert [mesh.group_of(config, rank, "embedding") for rank in range(6)] == [
        (0, 4), (1, 5), (2,), (3,), (0, 4), (1, 5),
    ]  # fmt: skip


def test_rank_outside_the_world_is_refused() -> None:
    with pytest.raises(UsageError, match="no rank 4"):
        mesh.stage_of(make_config(tp=2, pp=2), 4)


def test_one_process_plays_a_rank_of_thousands() -> None:
    """Only the default group and this rank's own are made, and axes with the same ranks share one."""
    config = make_config(tp=8, pp=16, cp=2, dp=32)
    dist.init_process_group("fake", store=FakeStore(), rank=4097, world_size=8192)
    try:
        state = mesh.build_parallel_state(config, rank=4097, world_size=8192)
        groups = [state.tp.group, state.cp.group, state.dp.group, state.dp_cp.group, state.pp.group]
        assert [group.size() for group in groups if group is not None] == [8, 2, 32, 64, 16]
        assert state.embedding.group is state.ep.group is state.inter_dist_opt.group is None
        assert (state.pp.rank, state.tp.rank) == (8, 1)
        assert [group.rank() for group in groups[::4] if group is not None] == [1, 8]
        assert len(dist.distributed_c10d._world.pg_map) == 1 + len(groups)
        assert (state.expert_tp.group, state.expert_dp.group) == (state.tp.group, state.dp_cp.group)
        assert state.intra_dp_cp.group is state.dp_cp.group
    finally:
        dist.destroy_process_group()
