"""Experts compute what a loop over tokens computes, keep their ledger, and may live on several ranks."""

from __future__ import annotations

import gc
import itertools
import math
import weakref
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from oomscope.config.schema import Config, ModelConfig
from oomscope.model.cost.parameters import stage_parameters
from oomscope.model.gpt.stage import GPTStage
from oomscope.model.moe.moe_layer import MoE
from oomscope.model.moe.token_dispatcher import ExpertParallel, nominal_plan
from oomscope.model.parallel.parallel_state import ParallelState
from tests.ledgers.layer import kept_layer_ledger, layer_ledger
from tests.ranks import run_ranks

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
TOKENS = torch.arange(32).view(2, 16)


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


def stage_of(config: Config, state: ParallelState) -> GPTStage:
    return GPTStage(
        config, state, layers=range(2), pre_process=True, post_process=True, device=CPU, dtype=torch.float32
    )


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
    moe = stage_of(config, ParallelState()).layers[0].mlp
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


def test_shared_experts_see_every_token():
    config = moe_config(model=SHARED)
    moe = stage_of(config, ParallelState()).layers[0].mlp
    x = torch.randn(16, 2, 32, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(moe(x), token_by_token(moe, config, x) + moe.shared(x), rtol=1e-4, atol=1e-7)


def test_balancing_losses_are_their_definitions():
    """Switch Transformer's loss (Fedus et al. 2021, equation 4) and ST-MoE's z-loss (Zoph et al. 2022, equation 5)."""
    config = moe_config(model=LOSSES)
    moe = stage_of(config, ParallelState()).layers[0].mlp
    x = torch.randn(16, 2, 32, generator=torch.Generator().manual_seed(1))
    tokens = x.flatten(0, -2)
    moe(x).sum().backward()
    got = moe.router.weight.grad.clone()
    moe.zero_grad()
    scores = tokens @ moe.router.weight.t()
    _, visits = routing_of(moe, config, tokens)
    balance = 8 * (visits.float().mean(0) / 3 * scores.softmax(1).mean(0)).sum()
    z_loss = scores.logsumexp(1).square().mean()
    (token_by_token(moe, config, x).sum() + 0.1 * balance + 0.01 * z_loss).backward()
    torch.testing.assert_close(got, moe.router.weight.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("split", [(1, 1, 1), (2, 8, 1), (2, 2, 2)])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("limit", LIMITS, ids=["dropless", "drop", "pad"])
def test_experts_keep_their_ledger(config_of, meta_stage, meter_of, limit, way, split):
    t, ep, etp = split
    recomputed = ([], ["layernorm", "moe_act"], ["mlp", "core_attn", "shared_experts"], ["moe", "layernorm"])
    for index, modules in enumerate(recomputed):
        imbalance, mlp = 1.0 + index % 2 / 2, MLPS[index // 2]
        config = config_of(
            model={
                **EXPERTS,
                **mlp,
                **way,
                **limit,
                **(SHARED if index % 3 else {}),
                **(LOSSES if index % 2 else {}),
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
        meter = meter_of(stage.layers[0])
        hidden = torch.empty(16 // t, 2, 64, device="meta", dtype=torch.bfloat16, requires_grad=True)
        out = meter(lambda stage=stage, hidden=hidden: stage.layers[0](hidden))
        assert meter.bytes == sum(kept_layer_ledger(config).values()), (imbalance, modules, mlp)
        out.sum().backward()
        assert hidden.grad.shape == hidden.shape


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("modules", [["moe"], ["moe_act", "shared_experts"], ["layernorm", "moe_act"]], ids="+".join)
def test_recomputation_changes_no_bit(way, modules):
    results = []
    for recompute in ({}, {"recompute_granularity": "selective", "recompute_modules": modules}):
        config = moe_config(model={**way, **SHARED, **LOSSES}, recompute=recompute)
        results.append(loss_and_gradients(config, ParallelState()))
    for name, tensor in results[1].items():
        assert torch.equal(tensor, results[0][name]), name


def test_a_capacity_bounds_what_an_expert_is_given(config_of):
    """ceil(n·k/E · factor) rows of each rank's tokens (Megatron-Core ``get_capacity``), whatever the routing."""
    capped = {**EXPERTS, **WAYS[0], "moe_imbalance_factor": 4.0, "moe_expert_capacity_factor": 1.5}
    expected = 2 * 2 * 64 * 4 * math.ceil(32 * 3 / 8 * 1.5)  # bytes, EP, h, local experts, capacity
    for padded in (False, True):
        model = {**capped, "moe_pad_expert_input_to_capacity": padded}
        config = config_of(model=model, parallel={"expert_model_parallel_size": 2})
        assert layer_ledger(config)["expert_fc1_input"] == expected
    even = config_of(model={**capped, "moe_imbalance_factor": 1.0}, parallel={"expert_model_parallel_size": 2})
    assert layer_ledger(even)["expert_fc1_input"] == expected * 2 // 3


def test_dense_layers_stand_between_experts():
    config = moe_config(model={"num_layers": 4, "moe_layer_freq": [0, 1, 1, 0]})
    stage = GPTStage(
        config,
        ParallelState(),
        layers=range(1, 4),
        pre_process=False,
        post_process=False,
        device=CPU,
        dtype=torch.float32,
    )
    assert [isinstance(layer.mlp, MoE) for layer in stage.layers] == [True, True, False]
    held = sum(parameter.numel() for parameter in stage.parameters())
    assert held == stage_parameters(config, 3, pre_process=False, post_process=False, first=1)
    assert [config.is_moe_layer(layer) for layer in range(4)] == [False, True, True, False]
    assert [moe_config(model={"moe_layer_freq": 2}).is_moe_layer(layer) for layer in range(4)] == [True, False] * 2


def test_only_the_norm_before_experts_is_a_layer_of_its_own(config_of):
    """In Transformer Engine's layers the norm before QKV is fused; recomputing ``layernorm`` spares the other one."""
    recompute = {"recompute_granularity": "selective", "recompute_modules": ["layernorm"]}
    config = config_of(model=EXPERTS, recompute=recompute)
    assert layer_ledger(config).keys() - kept_layer_ledger(config).keys() == {"norm2_stats", "fc1_input"}


def loss_and_gradients(config: Config, state: ParallelState) -> dict[str, torch.Tensor]:
    stage = stage_of(config, state)
    tokens = TOKENS
    if state.dp_size > 1:
        tokens = tokens.chunk(state.dp_size)[state.dp_rank]
    loss = stage(tokens, tokens.roll(-1, 1)) / state.dp_size
    loss.backward()
    for parameter in stage.parameters():
        if getattr(parameter, "allreduce", True) and state.dp_size > 1:
            dist.all_reduce(parameter.grad)
        if parameter.sequence_parallel:
            dist.all_reduce(parameter.grad, group=state.tp_group)
    if state.dp_size > 1:
        loss = loss.detach()
        dist.all_reduce(loss)
    return {"loss": loss.detach(), **{name: parameter.grad for name, parameter in stage.named_parameters()}}


def state_of(rank: int, *, tp: int, dp: int, cp: int, etp: int, ep: int) -> ParallelState:
    """Return a place in a stage of two ranks, all of whose axes of two are one group."""
    group = dist.group.WORLD
    sizes = {"tp": tp, "dp": dp, "cp": cp, "expert_tp": etp, "ep": ep, "dp_cp": dp * cp}
    return ParallelState(
        rank=rank,
        world_size=2,
        expert_tp_ep_group=group,
        **{f"{axis}_size": size for axis, size in sizes.items()},
        **{f"{axis}_rank": rank for axis, size in sizes.items() if size > 1},
        **{f"{axis}_group": group for axis, size in sizes.items() if size > 1},
    )


def check_ranks(rank: int) -> None:
    for mlp, way in [*itertools.product(MLPS[1:], WAYS), *itertools.product(MLPS[:1], WAYS[:1])]:
        model = {**mlp, **way, **SHARED}
        expected = loss_and_gradients(moe_config(model=model), ParallelState())
        for tp, dp, etp, ep in ((1, 2, 1, 2), (2, 1, 1, 2), (2, 1, 2, 1), (1, 2, 2, 1)):
            parallel = {
                "tensor_model_parallel_size": tp,
                "sequence_parallel": tp > 1,
                "expert_tensor_parallel_size": etp,
                "expert_model_parallel_size": ep,
            }
            data = {"seq_length": 16, "micro_batch_size": 2 // dp}
            state = state_of(rank, tp=tp, dp=dp, cp=1, etp=etp, ep=ep)
            got = loss_and_gradients(moe_config(model=model, parallel=parallel, data=data), state)
            torch.testing.assert_close(got["loss"], expected["loss"], rtol=1e-5, atol=1e-6)
            check_gradients(got, expected, rank, state)
    check_losses(rank)


def check_losses(rank: int) -> None:
    """Shared between ranks, the losses are those of one process; the global one of replicas that of a larger batch."""
    for kind, alone, (tp, dp) in (
        ("aux_loss", "aux_loss", (2, 1)),
        ("seq_aux_loss", "seq_aux_loss", (2, 1)),
        ("global_aux_loss", "aux_loss", (1, 2)),
    ):
        keys = {**WAYS[0], "moe_aux_loss_coeff": 10.0}
        expected = loss_and_gradients(
            moe_config(model={**keys, "moe_router_load_balancing_type": alone}), ParallelState()
        )
        config = moe_config(
            model={**keys, "moe_router_load_balancing_type": kind},
            parallel={
                "tensor_model_parallel_size": tp,
                "sequence_parallel": tp > 1,
                "expert_model_parallel_size": 2,
                "expert_tensor_parallel_size": 1,
                "data_parallel_size": dp,
            },
            data={"seq_length": 16, "micro_batch_size": 2 // dp, "global_batch_size": 2},
        )
        state = state_of(rank, tp=tp, dp=dp, cp=1, etp=1, ep=2)
        check_gradients(loss_and_gradients(config, state), expected, rank, state)


def check_gradients(
    got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], rank: int, state: ParallelState
) -> None:
    for name, tensor in got.items():
        if ".experts.fc" not in name and ".router." not in name:
            continue  # test_tensor_parallel compares those
        whole = whole_expert(name, expected, rank, state)
        torch.testing.assert_close(tensor, whole, rtol=1e-4, atol=1e-6, msg=f"{name} {state}")


def whole_expert(name: str, expected: dict[str, torch.Tensor], rank: int, state: ParallelState) -> torch.Tensor:
    """Return what ``rank`` holds of the single process's gradient ``name``."""
    if name not in expected or ".experts." not in name:
        return expected[name]
    head, _, expert = name.rpartition(".")
    if expert.isdigit():
        name = f"{head}.{int(expert) + rank * (4 if state.ep_size > 1 else 0)}"
    whole = expected[name]
    if state.ep_size > 1:
        return whole if expert.isdigit() else whole.chunk(2)[rank]
    gated = whole.shape[-1] == 32 and whole.shape[-2] == 2 * 24
    blocks = whole.chunk(2, -2) if gated else (whole,)
    return torch.cat([block.chunk(2, -2 if whole.shape[-1] == 32 else -1)[rank] for block in blocks], -2)


def test_experts_on_two_ranks(tmp_path: Path):
    run_ranks(check_ranks, world=2, folder=tmp_path)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.integers(1, 200), st.floats(1, 3), st.data())
def test_a_nominal_plan_is_even(ep_size, tp_size, local, tokens, imbalance, data):
    ep = ExpertParallel(size=ep_size, tp_size=tp_size, imbalance=imbalance)
    experts = ep_size * local
    topk = data.draw(st.integers(1, experts))
    model = ModelConfig(
        num_layers=1, hidden_size=8, num_attention_heads=1, num_moe_experts=experts, moe_router_topk=topk
    )
    sent, received = nominal_plan(tokens, model, ep)
    assert sum(sent) == tokens * topk
    assert max(sent) - min(sent) <= local
    assert [len(counts) for counts in received] == [local] * ep_size * tp_size
    assert max(max(counts) - min(counts) for counts in received) <= 1
    assert max(map(max, received)) <= tokens
    if ep_size == 1:
        assert sum(received[0]) == tokens * topk


@pytest.mark.parametrize("grouped", [False, True])
def test_fused_weight_gradients_reach_the_main_gradients(grouped):
    model = {"moe_grouped_gemm": grouped}
    plain, fused = (
        stage_of(
            moe_config(model=model, precision={"bf16": False, "gradient_accumulation_fusion": fuse}), ParallelState()
        )
        for fuse in (False, True)
    )
    for parameter in fused.parameters():
        parameter.main_grad = torch.zeros_like(parameter)
    for stage in (plain, fused):
        stage(TOKENS, TOKENS).backward()
    for one, two in zip(
        plain.layers[0].mlp.experts.parameters(), fused.layers[0].mlp.experts.parameters(), strict=True
    ):
        assert two.grad is None
        torch.testing.assert_close(two.main_grad, one.grad)


@pytest.mark.parametrize(("way", "numel"), [("allgather", 8 * 32 * 64), ("alltoall", None)])
def test_tokens_are_gathered_into_memory_that_stays(config_of, meta_stage, way, numel):
    """Layers and microbatches share it; tokens that are exchanged need none."""
    config = config_of(
        model={**EXPERTS, "moe_token_dispatcher_type": way, "add_bias_linear": False},
        parallel={"expert_model_parallel_size": 8},
    )
    stage = meta_stage(config)
    tokens = torch.empty((2, 16), dtype=torch.int64, device="meta")
    kept = []
    for _ in range(2):
        stage(tokens, tokens).backward()
        kept.append(stage._scratch._flat)
    assert kept[0] is kept[1]
    assert (None if kept[0] is None else kept[0].numel()) == numel


def test_a_dispatcher_remembers_its_last_microbatch_only():
    moe = stage_of(moe_config(model={"moe_token_dispatcher_type": "alltoall"}), ParallelState()).layers[0].mlp
    x = torch.randn(16, 2, 32, requires_grad=True)
    seen = []
    moe.router.register_forward_hook(lambda module, args, routing: seen.append(weakref.ref(routing.probabilities)))
    for alive in ([True], [False, True]):
        moe(x).sum().backward()
        gc.collect()
        assert [probabilities() is not None for probabilities in seen] == alive
