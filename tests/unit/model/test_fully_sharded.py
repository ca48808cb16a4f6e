"""What is wrapped as a unit, what parameters keep of what was said on them, and who takes their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from oomscope.config.schema import Config
from oomscope.errors import UsageError
from oomscope.model.base.observer import Silent
from oomscope.model.distributed.torch_fsdp2 import FullyShardedParameters, shard
from oomscope.model.gpt.stage import GPTStage
from oomscope.model.parallel.parallel_state import ParallelState

LLAMA = {
    "share_embeddings_and_output_weights": False,
    "position_embedding_type": "rope",
    "add_bias_linear": False,
    "normalization": "RMSNorm",
}
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}

ConfigOf = Callable[..., Config]
StageOf = Callable[..., GPTStage]


@pytest.fixture
def state(fake_world: None) -> ParallelState:
    """Rank 0 of four that share the parameters."""
    group = dist.new_group([0, 1, 2, 3])
    return ParallelState(world_size=8, dp_cp_size=4, dp_cp_group=group, intra_dp_cp_group=group)


def sharded(config_of: ConfigOf, meta_stage: StageOf, state: ParallelState, **sections: Any) -> GPTStage:
    model = {**LLAMA, **sections.pop("model", {})}
    config = config_of(model=model, precision={"bf16": False}, **sections)
    stage = meta_stage(config, device="cpu")
    shard(stage, config, state)
    return stage


def units(stage: GPTStage) -> list[str]:
    return [name for name, module in stage.named_modules() if isinstance(module, FSDPModule)]


@pytest.mark.parametrize(
    ("transformer_impl", "own"), [("transformer_engine", ["output_layer"]), ("local", [])], ids=["te", "local"]
)
def test_units_are_what_megatron_core_wraps(
    transformer_impl: str, own: list[str], config_of: ConfigOf, meta_stage: StageOf, state: ParallelState
) -> None:
    stage = sharded(config_of, meta_stage, state, model={"transformer_impl": transformer_impl})
    assert units(stage) == ["", "embedding", "layers.0", "layers.1", *own]


def test_parameters_are_cut_and_keep_what_was_said_on_them(
    config_of: ConfigOf, meta_stage: StageOf, state: ParallelState
) -> None:
    stage = sharded(config_of, meta_stage, state)
    for name, param in stage.named_parameters():
        assert isinstance(param, DTensor), name
        assert param.to_local().numel() * 4 == param.numel(), name
    projection = stage.layers[0].attention.projection.weight  # type: ignore[union-attr]
    assert projection.tensor_model_parallel
    assert not stage.final_norm.weight.tensor_model_parallel  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("model", "fetched"),
    [
        ({"position_embedding_type": "learned_absolute"}, [[], ["embedding"], ["layers.0"], ["layers.1"]]),
        ({}, [[], [], ["layers.0"], ["layers.1"]]),
    ],
    ids=["learned", "rope"],
)
def test_under_recomputation_a_backward_fetches_the_unit_before_it(
    model: dict[str, Any],
    fetched: list[list[str]],
    config_of: ConfigOf,
    meta_stage: StageOf,
    state: ParallelState,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named: list[list[FSDPModule]] = []
    monkeypatch.setattr(
        FSDPModule, "set_modules_to_backward_prefetch", lambda unit, modules: named.append(modules), raising=True
    )
    stage = sharded(config_of, meta_stage, state, model=model, recompute=FULL)
    names = {module: name for name, module in stage.named_modules()}
    assert [[names[module] for module in modules] for modules in named] == fetched  # type: ignore[index]
    named.clear()
    sharded(config_of, meta_stage, state, model=model)
    assert not named


def test_a_rank_alone_is_refused(config_of: ConfigOf, meta_stage: StageOf) -> None:
    with pytest.raises(UsageError, match="need ranks to share them with"):
        sharded(config_of, meta_stage, ParallelState())


def test_a_gradient_is_taken_once_and_forgotten(config_of: ConfigOf, meta_stage: StageOf, state: ParallelState) -> None:
    config = config_of(model=LLAMA, precision={"bf16": False})
    store = FullyShardedParameters(meta_stage(config, device="cpu"), config, state, Silent())
    param = store.params[0]
    param.grad = torch.ones_like(param)
    grad = store.take_grad(0)
    assert not isinstance(grad, DTensor)
    assert grad.shape == store.value(0).shape
    assert param.grad is None
    with pytest.raises(TypeError, match="no gradient"):
        store.take_grad(0)
    param.grad = torch.ones_like(param)
    store.zero()
    assert param.grad is None


def test_updates_reach_the_parameter(config_of: ConfigOf, meta_stage: StageOf, state: ParallelState) -> None:
    config = config_of(model=LLAMA, precision={"bf16": False})
    store = FullyShardedParameters(meta_stage(config, device="cpu"), config, state, Silent())
    store.value(0).fill_(3.0)
    assert store.params[0].to_local().unique().tolist() == [3.0]  # type: ignore[attr-defined]
