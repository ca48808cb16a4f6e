"""Operations agree with the published formulas and with what torch counts, bytes with what layers keep and send."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, bmm_flop

from oomscope.config.load import load_preset
from oomscope.config.schema import Config
from oomscope.model.cost.work import iteration_flops, layer_work, offloaded_bytes, total
from tests.ledgers.layer import kept_layer_ledger
from tests.unit.model.conftest import config_of, cpu_stage


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
def test_torch_counts_the_same(model, recompute):
    dropout = {"hidden_dropout": 0.0, "attention_dropout": 0.0, "attention_backend": "unfused"}
    config = config_of(model={**model, **dropout}, recompute=recompute, precision={"bf16": False})
    stage = cpu_stage(config)
    tokens = torch.zeros(2, 16, dtype=torch.int64)
    # torch's table lacks the form that works in place
    in_place = {torch.ops.aten.baddbmm_: lambda _, a, b, out_val=None, **__: bmm_flop(a.shape, b.shape)}
    in_place[torch.ops.aten.baddbmm_]._get_raw = True
    with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
        stage(tokens, tokens).backward()
    assert counter.get_total_flops() == sum(iteration_flops(config, rank=0).values())


def test_experts_count_as_often_as_tokens_visit_them():
    experts = {"num_moe_experts": 4, "moe_router_topk": 2, "moe_ffn_hidden_size": 32, "gated_linear_unit": True}
    assert layer_work(config_of(model=experts))["experts"].flops == 2 * 32 * 64 * (4 + 2 * 3 * 32)


@pytest.mark.parametrize("preset", ["gpt-tiny", "llama3-8b", "qwen3-30b-a3b-shaped"])
def test_a_whole_layer_sends_about_what_it_saves(preset: str) -> None:
    """The ledger, which the model is held to, has the small tensors and the masks of dropout too."""
    overrides = [
        "model.hidden_dropout=0",
        "model.attention_dropout=0",
        "offload.cpu_offloading=true",
        "offload.cpu_offloading_num_layers=1",
        "data.num_microbatches=1",
    ]
    config = load_preset(preset, overrides).config
    assert offloaded_bytes(config, 0) == pytest.approx(sum(kept_layer_ledger(config).values()), rel=0.2)


EXPERTS = {"num_moe_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 128, "add_bias_linear": False}
HIDDEN = 2 * (2 * 64) * 256


def sent_by(model: dict[str, object], **parallel: object):
    shape = {"num_layers": 2, "hidden_size": 256, "num_attention_heads": 8, "vocab_size": 1000, **model}
    data = {"seq_length": 64, "micro_batch_size": 2}
    return total(layer_work(Config.model_validate({"model": shape, "parallel": parallel, "data": data}))).sent


def test_all_to_all_sends_rows_and_all_gather_tokens() -> None:
    """Of top-2 rows three quarters leave, there and back; or every token goes to the other three ranks."""
    parallel = {"expert_model_parallel_size": 4, "data_parallel_size": 4}
    assert sent_by({**EXPERTS, "moe_token_dispatcher_type": "alltoall"}, **parallel)["ep"] == 2 * 2 * HIDDEN * 3 // 4
    assert sent_by({**EXPERTS, "moe_token_dispatcher_type": "allgather"}, **parallel)["expert_tp_ep"] == 2 * HIDDEN * 3
