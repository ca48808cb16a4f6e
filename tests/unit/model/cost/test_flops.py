"""FLOPs agree with the published formulas and with what torch counts."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, bmm_flop

from oomscope.config.schema import Config
from oomscope.model.cost.flops import iteration_flops, layer_flops
from oomscope.model.gpt.stage import GPTStage
from oomscope.model.parallel.parallel_state import ParallelState


def test_gpt_is_narayanans_formula():
    """96·B·s·l·h²·(1 + s/6h + V/16lh), which counts one full recomputation."""
    s, h, layers, a, v, b = 2048, 6144, 48, 64, 51200, 4
    config = Config.model_validate(
        {
            "model": {"num_layers": layers, "hidden_size": h, "num_attention_heads": a, "vocab_size": v},
            "data": {"seq_length": s, "micro_batch_size": b, "num_microbatches": 3},
            "recompute": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
        }
    )
    flops = iteration_flops(config, rank=0)
    expected = 3 * (96 * b * s * layers * h**2 * (1 + s / (6 * h)) + 6 * b * s * h * v)
    assert sum(flops.values()) == pytest.approx(expected, rel=1e-12)


MODELS = [
    {},
    {"num_query_groups": 2, "gated_linear_unit": True, "activation_func": "silu", "position_embedding_type": "rope"},
    {"mtp_num_layers": 2, "position_embedding_type": "rope"},
]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "recompute",
    [
        {},
        {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 1},
        {"recompute_granularity": "selective", "recompute_modules": ["core_attn", "mlp"]},
    ],
)
def test_torch_counts_the_same(config_of, model, recompute):
    dropout = {"hidden_dropout": 0.0, "attention_dropout": 0.0, "attention_backend": "unfused"}
    config = config_of(model={**model, **dropout}, recompute=recompute, precision={"bf16": False})
    stage = GPTStage(
        config,
        ParallelState(),
        layers=range(2),
        pre_process=True,
        post_process=True,
        device=torch.device("cpu"),
        dtype=torch.float32,
    )
    tokens = torch.zeros(2, 16, dtype=torch.int64)
    # torch's table lacks the form that works in place
    in_place = {torch.ops.aten.baddbmm_: lambda _, a, b, out_val=None, **__: bmm_flop(a.shape, b.shape)}
    in_place[torch.ops.aten.baddbmm_]._get_raw = True
    with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
        stage(tokens, tokens).backward()
    assert counter.get_total_flops() == sum(iteration_flops(config, rank=0).values())


def test_ranks_share_the_work(config_of):
    parallel = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2}
    split = config_of(parallel=parallel, model={"make_vocab_size_divisible_by": 64})
    whole = iteration_flops(config_of(), rank=0)["model"]
    assert sum(iteration_flops(split, rank=rank)["model"] for rank in range(4)) == whole


def test_experts_count_as_often_as_tokens_visit_them(config_of):
    experts = {"num_moe_experts": 4, "moe_router_topk": 2, "moe_ffn_hidden_size": 32, "gated_linear_unit": True}
    assert layer_flops(config_of(model=experts)).mlp == 2 * 32 * 64 * (4 + 2 * 3 * 32)
