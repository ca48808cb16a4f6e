"""Experts compute what a loop over tokens computes, keep their ledger, and may live on several ranks."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from oomscope.config.schema import Config, ModelConfig
from oomscope.model.cost.parameters import stage_parameters
from oomscope.model.moe.moe_layer import MoE
from oomscope.model.moe.token_dispatcher import nominal_plan
from oomscope.model.parallel.parallel_state import ParallelState, Place
from tests.ledgers.layer import kept_layer_ledger
from tests.unit.model.conftest import config_of, cpu_stage, loss_and_gradients, saved_by_layer
from tests.unit.model.pairs import pairs

CPU = torch.device("cpu")
EXPERTS = {"num_moe_experts": 8, "moe_router_topk": 3, "moe_ffn_hidden_size": 24}
WAYS = [
    {"moe_token_dispatcher_type": "alltoall", "moe_grouped_gemm": True},
    {"moe_token_dispatcher_type": "alltoall", "moe_permute_fusion": True, "moe_router_dtype": "fp32"},
    {"moe_token_dispatcher_type": "allgather", "moe_router_pre_softmax": True},
    {"moe_token_dispatcher_type": "allgather", "moe_permute_fusion": True, "moe_grouped_gemm": True},
]
LIMITS = [
    {},
    {"moe_expert_capacity_factor": 0.5},
    {"moe_expert_capacity_factor": 1.25, "moe_pad_expert_input_to_capacity": True},
]
LOSSES = {"moe_aux_loss_coeff": 0.1, "moe_z_loss_coeff": 0.01}
SHARED = {"moe_shared_expert_intermediate_size": 16}
MLPS = [{"activation_func": "gelu"}, {"activation_func": "silu", "gated_linear_unit": True}]


def moe_config(**sections: dict) -> Config:
    model = {
        "num_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "vocab_size": 100,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "make_vocab_size_divisible_by": 64,
        "add_bias_linear": False,
        **EXPERTS,
        **sections.pop("model", {}),
    }
    data = {"seq_length": 16, "micro_batch_size": 2}
    return Config.model_validate({"model": model, "data": data, "precision": {"bf16": False}, **sections})


def routing_of(moe: MoE, config: Config, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weight of each expert [n, E] and which are visited, by the definitions of top-k and capacity."""
    model = config.model
    scores = tokens @ moe.router.weight.t()
    picked = scores.topk(model.moe_router_topk).indices
    visits = torch.zeros_like(scores).scatter(1, picked, 1.0).bool()
    if model.moe_router_pre_softmax:
        weights = scores.softmax(1) * visits
    else:
        weights = scores.masked_fill(~visits, -torch.inf).softmax(1)
    if model.moe_expert_capacity_factor is not None:
        limit = math.ceil(len(tokens) * model.moe_router_topk / scores.shape[1] * model.moe_expert_capacity_factor)
        best = torch.zeros_like(scores).scatter(0, weights.topk(limit, dim=0).indices, 1.0).bool()
        weights, visits = weights * best, best
    return weights, visits


def token_by_token(moe: MoE, config: Config, x: torch.Tensor) -> torch.Tensor:
    activation = getattr(functional, config.model.activation_func)
    tokens = x.flatten(0, -2)
    weights, _ = routing_of(moe, config, tokens)
    outputs = []
    for token, shares in zip(tokens, weights, strict=True):
        out = torch.zeros_like(token)
        for expert in shares.nonzero().flatten().tolist():
            inner = moe.experts.fc1[expert] @ token
            if config.model.gated_linear_unit:
                gate, up = inner.chunk(2)
                inner = activation(gate) * up
            else:
                inner = activation(inner)
            out = out + shares[expert] * (moe.experts.fc2[expert] @ inner)
        outputs.append(out)
    return torch.stack(outputs).view(x.shape)


@pytest.mark.parametrize("limit", LIMITS, ids=["dropless", "drop", "pad"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mlp", MLPS)
def test_experts_are_a_loop_over_tokens(mlp, way, limit):
    config = moe_config(model={**mlp, **way, **limit})
    moe = cpu_stage(config).layers[0].mlp
    results = []
    for run in (moe, lambda x: token_by_token(moe, config, x)):
        x = torch.randn(16, 2, 32, generator=torch.Generator().manual_seed(1)).requires_grad_()
        moe.zero_grad()
        out = run(x)
        (out * torch.linspace(-1, 1, 32)).sum().backward()
        gradients = [parameter.grad for parameter in moe.parameters()]
        results.append([out, x.grad, *(torch.zeros(()) if grad is None else grad.clone() for grad in gradients)])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected.expand_as(got), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("split", [(1, 1, 1), (2, 8, 1), (2, 2, 2)])
def test_experts_keep_their_ledger(meta_stage, split):
    t, ep, etp = split
    recomputed = ([], ["layernorm", "moe_act"], ["mlp", "core_attn", "shared_experts"], ["moe", "layernorm"])
    further = ({}, SHARED, LOSSES, {**SHARED, **LOSSES})
    for modules, way, limit, more, mlp, imbalance in pairs(recomputed, WAYS, LIMITS, further, MLPS, (1.0, 1.5)):
        config = config_of(
            model={
                **EXPERTS,
                **mlp,
                **way,
                **limit,
                **more,
                "moe_imbalance_factor": imbalance,
                "position_embedding_type": "rope",
                "add_bias_linear": False,
            },
            parallel={
                "tensor_model_parallel_size": t,
                "sequence_parallel": t > 1,
                "expert_model_parallel_size": ep,
                "expert_tensor_parallel_size": etp,
            },
            recompute={"recompute_granularity": "selective", "recompute_modules": modules},
        )
        stage = meta_stage(config)
        assert sum(p.numel() for p in stage.parameters()) == stage_parameters(
            config, 2, pre_process=True, post_process=True
        )
        kept = sum(kept_layer_ledger(config).values())
        assert saved_by_layer(stage, config) == kept, (imbalance, modules, mlp, way, limit, more)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("modules", [["moe"], ["moe_act", "shared_experts"], ["layernorm", "moe_act"]], ids="+".join)
def test_recomputation_changes_no_bit(way, modules):
    results = []
    for recompute in ({}, {"recompute_granularity": "selective", "recompute_modules": modules}):
        config = moe_config(model={**way, **SHARED, **LOSSES}, recompute=recompute)
        results.append(loss_and_gradients(config))
    for name, tensor in results[1].items():
        assert torch.equal(tensor, results[0][name]), name


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.integers(1, 200), st.floats(1, 3), st.data())
def test_a_nominal_plan_is_even(ep_size, tp_size, local, tokens, imbalance, data):
    ranks = {"ep": ep_size, "expert_tp": tp_size, "expert_tp_ep": ep_size * tp_size}
    state = ParallelState(**{axis: Place(size=size) for axis, size in ranks.items()})
    experts = ep_size * local
    topk = data.draw(st.integers(1, experts))
    model = ModelConfig(
        num_layers=1,
        hidden_size=8,
        num_attention_heads=1,
        num_moe_experts=experts,
        moe_router_topk=topk,
        moe_imbalance_factor=imbalance,
    )
    sent, received = nominal_plan(tokens, model, state)
    assert sum(sent) == tokens * topk
    assert max(sent) - min(sent) <= local
    assert [len(counts) for counts in received] == [local] * ep_size * tp_size
    assert max(max(counts) - min(counts) for counts in received) <= 1
    assert max(map(max, received)) <= tokens
    if ep_size == 1:
        assert sum(received[0]) == tokens * topk
