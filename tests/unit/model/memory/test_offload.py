"""Offload changes where activations lie, and not one bit of loss or gradients, and what stays is upstream's choice."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oomscope.config.schema import Config
from oomscope.model.memory import offload
from oomscope.model.memory.offload import ModuleOffload, resident_groups
from oomscope.model.parallel.interleaved_schedule import InterleavedSchedule
from oomscope.model.parallel.schedules import PassOrder, pass_order
from tests.unit.model.conftest import config_of, cpu_stage

CPU = torch.device("cpu")
DENSE = ["qkv_linear", "core_attn", "attn_proj"]
EXPERTS = {
    "num_moe_experts": 4,
    "moe_ffn_hidden_size": 32,
    "moe_grouped_gemm": True,
    "add_bias_linear": False,
    "hidden_dropout": 0.0,
    "moe_token_dispatcher_type": "alltoall",
}
LATENT = {
    "multi_latent_attention": True,
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_head_dim": 8,
    "qk_pos_emb_head_dim": 4,
    "v_head_dim": 8,
    "position_embedding_type": "rope",
    "add_bias_linear": False,
}


def loss_and_gradients(config) -> list[torch.Tensor]:
    """Two passes in flight at once, twice, as pipelines have them; the second time groups stay."""
    stage = cpu_stage(config, dtype=torch.bfloat16)
    tokens = torch.arange(32).view(2, 16)
    torch.manual_seed(3)
    results: list[torch.Tensor] = []
    for _ in range(2):
        losses = [stage(tokens, tokens) for _ in range(2)]
        for loss in losses:
            loss.backward()
        results += losses
    return [*results, torch.rand(1), *(parameter.grad for parameter in stage.parameters())]


@pytest.mark.parametrize(
    ("model", "modules"),
    [
        ({}, DENSE),
        ({"attention_backend": "unfused"}, ["core_attn"]),
        ({"position_embedding_type": "rope", "num_query_groups": 2, "qk_layernorm": True}, DENSE),
        (EXPERTS, ["expert_fc1", "moe_act", "mlp_norm", *DENSE]),
        (LATENT, ["attn_norm", *DENSE]),
    ],
)
@pytest.mark.parametrize("recompute", [[], ["core_attn"], ["layernorm"], ["moe_act"], ["mla_up_proj"]])
def test_the_same_bits(model, modules, recompute):
    if ("moe_act" in recompute and model is not EXPERTS) or ("mla_up_proj" in recompute and model is not LATENT):
        return
    model = {"num_layers": 3, "attention_dropout": 0.0, **model}
    selective = {"recompute_granularity": "selective", "recompute_modules": recompute}
    offload = {"fine_grained_activation_offloading": True, "offload_modules": modules, "min_offloaded_tensor_size": 32}
    data = {"seq_length": 16, "micro_batch_size": 2, "num_microbatches": 2}
    plain = loss_and_gradients(config_of(model=model, recompute=selective, data=data))
    offloaded = loss_and_gradients(config_of(model=model, recompute=selective, offload=offload, data=data))
    assert all(torch.equal(one, two) for one, two in zip(plain, offloaded, strict=True))


@pytest.mark.parametrize("backend", ["flash", "unfused"])
@pytest.mark.parametrize("positions", ["rope", "learned_absolute"])
def test_offloaded_layers_give_the_same_bits(monkeypatch, positions, backend):
    monkeypatch.setattr(offload, "SMALLEST_OFFLOADED", 32)
    model = {
        "num_layers": 4,
        "position_embedding_type": positions,
        "attention_backend": backend,
        "attention_dropout": 0.0 if backend == "flash" else 0.1,
    }
    plain = loss_and_gradients(config_of(model=model))
    for layers in (1, 2, 3):
        setting = {"cpu_offloading": True, "cpu_offloading_num_layers": layers}
        offloaded = loss_and_gradients(config_of(model=model, offload=setting))
        assert all(torch.equal(one, two) for one, two in zip(plain, offloaded, strict=True)), layers


def test_a_small_view_does_not_take_its_storage_along():
    offloading = {"fine_grained_activation_offloading": True, "offload_modules": ["core_attn"]}
    config = config_of(offload={**offloading, "min_offloaded_tensor_size": 1})
    modules = ModuleOffload(config, pp_rank=0, device=CPU)
    modules.begin([])
    whole = torch.linspace(0, 1, 100, requires_grad=True)
    base = whole * 1
    out = modules.run("core_attn", lambda x: x[:10] * x[10:20], base)
    hosts = [storage.host for group in modules.passes[-1].groups for storage in group.storages]
    assert [host.numel() for host in hosts] == [10, 10]
    out.sum().backward()
    assert torch.equal(whole.grad[:10], whole.detach()[10:20])


def schedule(p: int, m: int, v: int) -> Config:
    virtual = {"virtual_pipeline_model_parallel_size": v} if v > 1 else {}
    return Config.model_validate(
        {
            "model": {"num_layers": p * v, "hidden_size": 64, "num_attention_heads": 8, "vocab_size": 1000},
            "parallel": {"pipeline_model_parallel_size": p, **virtual},
            "data": {"seq_length": 16, "num_microbatches": m},
        }
    )


def staying(names: str, passes: int, order: PassOrder, fraction: float) -> list[str]:
    """Return the numbers of the groups of each pass that stay; every group has bytes, and the name of a letter."""
    groups = [(name, 1) for name in names]
    return ["".join(map(str, sorted(stay))) for stay in resident_groups([groups] * passes, order, fraction)]


@pytest.mark.parametrize(
    ("p", "rank", "m", "v", "names", "fraction", "expected"),
    [
        (1, 0, 3, 1, "ababab", 1.0, ["45", "45", "45"]),
        (4, 0, 5, 1, "abab", 1.0, ["23", "", "", "", ""]),
        (4, 3, 5, 1, "abab", 1.0, ["23", "23", "23", "23", "23"]),
        (4, 2, 5, 1, "ababab", 0.5, ["2345", "345", "345", "345", "345"]),
        (2, 0, 4, 2, "abab", 1.0, ["", "", "23", "", "", "", "", ""]),
        (2, 1, 4, 2, "abab", 1.0, ["", "", "23", "23", "", "", "23", "23"]),
        (2, 1, 4, 2, "aaaaaa", 0.9, ["", "", "5", "5", "", "", "5", "5"]),
    ],
)
def test_groups_stay_as_the_manager_of_megatron_core_has_it(p, rank, m, v, names, fraction, expected) -> None:
    """Recorded from upstream's ``PipelineOffloadManager``, driven by these schedules with groups of a byte each."""
    order = pass_order(schedule(p, m, v), rank)
    assert staying(names, len(order.chunks), order, fraction) == expected


@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 3), st.data())
def test_the_order_is_that_of_the_schedule(p: int, v: int, groups: int, data: st.DataObject) -> None:
    v = v if p > 1 else 1
    rank, m = data.draw(st.integers(0, p - 1)), p * groups
    order = pass_order(schedule(p, m, v), rank)
    interleaved = InterleavedSchedule(p, rank, m, v, p if v > 1 else m)
    forwards, backwards = interleaved.passes("forward"), interleaved.passes("backward")
    assert order.chunks == tuple(action.chunk for action in forwards)
    assert [forwards[number]._replace(direction="backward") for number in order.backward] == backwards
    assert order.warmup == interleaved.warmup
