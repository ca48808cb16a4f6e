"""Offloading what single modules save changes where it lies, and not one bit of loss or gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from oomscope.model.gpt.stage import GPTStage
from oomscope.model.memory.offload import ModuleOffload
from oomscope.model.parallel.parallel_state import ParallelState
from oomscope.model.parallel.schedules import PassOrder

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


def stage_of(config, device: str = "cpu") -> GPTStage:
    return GPTStage(
        config,
        ParallelState(),
        layers=range(config.model.num_layers),
        pre_process=True,
        post_process=True,
        device=torch.device(device),
        dtype=torch.bfloat16,
    )


def loss_and_gradients(config) -> list[torch.Tensor]:
    """Two passes in flight at once, twice, as pipelines have them; the second time groups stay."""
    stage = stage_of(config)
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
def test_the_same_bits(config_of, model, modules, recompute):
    if ("moe_act" in recompute and model is not EXPERTS) or ("mla_up_proj" in recompute and model is not LATENT):
        return
    model = {"num_layers": 3, "attention_dropout": 0.0, **model}
    selective = {"recompute_granularity": "selective", "recompute_modules": recompute}
    offload = {"fine_grained_activation_offloading": True, "offload_modules": modules, "min_offloaded_tensor_size": 32}
    data = {"seq_length": 16, "micro_batch_size": 2, "num_microbatches": 2}
    plain = loss_and_gradients(config_of(model=model, recompute=selective, data=data))
    offloaded = loss_and_gradients(config_of(model=model, recompute=selective, offload=offload, data=data))
    assert all(torch.equal(one, two) for one, two in zip(plain, offloaded, strict=True))


def test_whole_layers_recomputed_give_the_same_bits(config_of):
    recompute = {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 1}
    offload = {"fine_grained_activation_offloading": True, "offload_modules": DENSE, "min_offloaded_tensor_size": 32}
    model = {"num_layers": 3, "attention_dropout": 0.0}
    plain = loss_and_gradients(config_of(model=model, recompute=recompute))
    offloaded = loss_and_gradients(config_of(model=model, recompute=recompute, offload=offload))
    assert all(torch.equal(one, two) for one, two in zip(plain, offloaded, strict=True))


ONE_PASS = PassOrder(chunks=(0,), backward=(0,), warmup=0)
"""A microbatch that is differentiated at once."""


class Square(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x


def parcels_of(run, *, names=("a", "b", "a", "b"), warm: bool = False, **settings):
    """Run a chain of squares, and return the offloaded groups' names, the output and what stays on the device."""
    options = {"smallest": 32, "fraction": 1.0, "order": ONE_PASS, "device": CPU, **settings}
    offload = ModuleOffload({"a", "b"}, **options)
    x = torch.linspace(0.5, 1.5, 64, requires_grad=True)
    for _ in range(2 - warm):
        offload.begin([])
        out = x * 1  # hooks on a leaf would outlive the pass
        for name in names:
            out = offload.run(name, Square(), out)
    return [group.name for group in offload._pass.groups if group.is_away], out, offload, x


def test_the_last_group_of_each_name_stays_after_the_first_iteration():
    assert parcels_of(None, warm=True)[0] == ["a", "b", "a", "b"]
    assert parcels_of(None)[0] == ["a", "b"]
    assert parcels_of(None, fraction=0.5)[0] == ["a"]
    assert parcels_of(None, fraction=0.0)[0] == []
    assert parcels_of(None, fraction=0.4)[0] == ["a"], "int(2 * 0.6) of two stay"


def test_small_tensors_stay():
    assert parcels_of(None, smallest=65)[0] == []
    assert parcels_of(None, smallest=64)[0] == ["a", "b"]


def test_what_two_modules_save_goes_to_the_host_twice(config_of):
    """Conservation: bytes let go are bytes on the host, and the projection saves attention's output as well."""
    offload = {"fine_grained_activation_offloading": True, "offload_modules": DENSE, "min_offloaded_tensor_size": 1024}
    model = {"num_layers": 2, "attention_dropout": 0.0}
    config = config_of(model=model, offload=offload, data={"seq_length": 16, "micro_batch_size": 2})
    stage = stage_of(config)
    tokens = torch.arange(32).view(2, 16)
    loss = stage(tokens, tokens)
    groups = stage._module_offload._pass.groups
    assert [group.name for group in groups] == DENSE * 2
    hosts = [storage.host for group in groups for storage in group._storages]
    assert all(host is not None for host in hosts)
    hidden = 2 * 32 * 64  # norm input and output, Q, K and V, context; statistics and LSE are smaller than the least
    assert sum(host.nbytes for host in hosts) == 2 * (2 + 3 + 2) * hidden
    loss.backward()
    assert all(storage.host is None for group in groups for storage in group._storages)


def test_a_small_view_does_not_take_its_storage_along():
    offload = ModuleOffload({"a"}, smallest=1, fraction=1.0, order=ONE_PASS, device=CPU)
    offload.begin([])
    whole = torch.linspace(0, 1, 100, requires_grad=True)
    base = whole * 1
    out = offload.run("a", lambda x: x[:10] * x[10:20], base)
    hosts = [storage.host for group in offload._pass.groups for storage in group._storages]
    assert [host.numel() for host in hosts] == [10, 10]
    out.sum().backward()
    assert torch.equal(whole.grad[:10], whole.detach()[10:20])
