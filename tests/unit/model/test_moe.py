"""Experts compute what a loop over tokens computes, keep their ledger, and may live on several ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from oomscope.config.schema import Config
from oomscope.model import dispatch
from oomscope.model.dispatch import ExpertParallel, plan
from oomscope.model.ledger import kept_layer_ledger, layer_ledger, stage_parameters
from oomscope.model.mesh import ParallelState
from oomscope.model.moe import MoE
from oomscope.model.transformer import GPTStage

CPU = torch.device("cpu")
EXPERTS = {"num_moe_experts": 8, "moe_router_topk": 3, "moe_ffn_hidden_size": 24}
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
        **EXPERTS,
        **sections.pop("model", {}),
    }
    data = {"seq_length": 16, "micro_batch_size": 2}
    return Config.model_validate({"model": model, "data": data, "precision": {"bf16": False}, **sections})


def stage_of(config: Config, state: ParallelState) -> GPTStage:
    return GPTStage(
        config, state, layers=range(2), pre_process=True, post_process=True, device=CPU, dtype=torch.float32
    )


def token_by_token(moe: MoE, config: Config, x: torch.Tensor) -> torch.Tensor:
    activation = getattr(functional, config.model.activation_func)
    outputs = []
    for token in x.flatten(0, -2):
        scores, experts = (token @ moe.router.weight.t()).topk(config.model.moe_router_topk)
        out = torch.zeros_like(token)
        for weight, expert in zip(scores.softmax(0), experts.tolist(), strict=True):
            inner = moe.fc1[expert] @ token
            if config.model.gated_linear_unit:
                gate, up = inner.chunk(2)
                inner = activation(gate) * up
            else:
                inner = activation(inner)
            out = out + weight * (moe.fc2[expert] @ inner)
        outputs.append(out)
    return torch.stack(outputs).view(x.shape)


@pytest.mark.parametrize("mlp", MLPS)
def test_experts_are_a_loop_over_tokens(mlp):
    config = moe_config(model=mlp)
    moe = stage_of(config, ParallelState()).layers[0].mlp
    results = []
    for run in (moe, lambda x: token_by_token(moe, config, x)):
        x = torch.randn(16, 2, 32, generator=torch.Generator().manual_seed(1)).requires_grad_()
        moe.zero_grad()
        out = run(x)
        (out * torch.linspace(-1, 1, 32)).sum().backward()
        results.append([out, x.grad, *(parameter.grad.clone() for parameter in moe.parameters())])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("split", [(1, 1), (1, 4), (2, 8)])
@pytest.mark.parametrize("mlp", MLPS)
def test_experts_keep_their_ledger(config_of, meta_stage, meter_of, mlp, split):
    t, ep = split
    for imbalance in (1.0, 1.5):
        for modules in ([], ["layernorm"], ["mlp", "core_attn"]):
            config = config_of(
                model={**EXPERTS, **mlp, "moe_imbalance_factor": imbalance, "position_embedding_type": "rope"},
                parallel={
                    "tensor_model_parallel_size": t,
                    "sequence_parallel": t > 1,
                    "expert_model_parallel_size": ep,
                    "expert_tensor_parallel_size": 1,
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
            assert meter.bytes == sum(kept_layer_ledger(config).values())
            out.sum().backward()
            assert hidden.grad.shape == hidden.shape
    assert layer_ledger(config)["expert_fc1_input"] == (imbalance if ep > 1 else 1) * 3 * 2 * 64 * 32 // t


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


def check_ranks(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    group = dist.new_group([0, 1])
    data_parallel = ParallelState(
        rank=rank, world_size=2, dp_rank=rank, dp_size=2, dp_group=group, ep_rank=rank, ep_size=2, ep_group=group
    )
    tensor_parallel = ParallelState(
        rank=rank, world_size=2, tp_rank=rank, tp_size=2, tp_group=group, ep_rank=rank, ep_size=2, ep_group=group
    )
    for mlp in MLPS:
        expected = loss_and_gradients(moe_config(model=mlp), ParallelState())
        experts = {"expert_model_parallel_size": 2, "expert_tensor_parallel_size": 1}
        shared = {**experts, "tensor_model_parallel_size": 2, "sequence_parallel": True}
        for parallel, data, state in (
            (experts, {"seq_length": 16, "micro_batch_size": 1}, data_parallel),
            (shared, {"seq_length": 16, "micro_batch_size": 2}, tensor_parallel),
        ):
            got = loss_and_gradients(moe_config(model=mlp, parallel=parallel, data=data), state)
            for name, tensor in got.items():
                whole = expected[name]
                if whole.shape != tensor.shape:
                    if "mlp" not in name:
                        continue  # test_tensor_parallel cuts those
                    whole = whole.chunk(2)[rank]
                torch.testing.assert_close(tensor, whole, rtol=1e-4, atol=1e-6, msg=f"{parallel} {name}")
    dist.destroy_process_group()


def test_experts_on_two_ranks(tmp_path: Path):
    mp.spawn(check_ranks, args=(str(tmp_path),), nprocs=2)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 200), st.floats(1, 3))
def test_a_nominal_plan_is_even(ep_size, local, rows, imbalance):
    ep = ExpertParallel(size=ep_size, imbalance=imbalance)
    experts = torch.empty(rows, 1, dtype=torch.int64, device="meta")
    rows_sent, received = plan(experts, ep_size * local, ep)
    assert sum(rows_sent) == rows
    assert max(rows_sent) - min(rows_sent) <= local
    assert [len(counts) for counts in received] == [local] * ep_size
    assert max(max(counts) - min(counts) for counts in received) <= 1
    if ep_size == 1:
        assert sum(received[0]) == rows


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.randoms())
def test_reordering_is_undone(sizes, random):
    order = list(range(len(sizes)))
    random.shuffle(order)
    rows = torch.arange(sum(sizes))
    there = dispatch._reorder(rows, sizes, order)
    assert torch.equal(dispatch._reorder(there, *dispatch._inverse(sizes, order)), rows)


def test_fused_weight_gradients_reach_the_main_gradients():
    plain, fused = (
        stage_of(moe_config(precision={"bf16": False, "gradient_accumulation_fusion": fuse}), ParallelState())
        for fuse in (False, True)
    )
    for parameter in fused.parameters():
        parameter.main_grad = torch.zeros_like(parameter)
    for stage in (plain, fused):
        stage(TOKENS, TOKENS).backward()
    one, two = plain.layers[0].mlp, fused.layers[0].mlp
    assert two.fc1.grad is None
    torch.testing.assert_close(two.fc1.main_grad, one.fc1.grad)
    torch.testing.assert_close(two.fc2.main_grad, one.fc2.grad)
