"""The bytes that the estimate sends to the host are those that the model sends there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from oomscope.config.schema import Config
from oomscope.model.base.side_stream import SideStream
from oomscope.model.cost.offload_traffic import offloaded_bytes
from oomscope.model.parallel.parallel_state import build_parallel_state
from oomscope.model.trainer import Trainer

SMALLEST = 512 * 128
DENSE = ["qkv_linear", "core_attn", "attn_proj"]
EXPERTS = {
    "num_moe_experts": 4,
    "moe_ffn_hidden_size": 256,
    "moe_grouped_gemm": True,
    "moe_layer_freq": 2,
    "activation_func": "silu",
    "gated_linear_unit": True,
}
LATENT = {
    "multi_latent_attention": True,
    "q_lora_rank": 128,
    "kv_lora_rank": 128,
    "qk_head_dim": 32,
    "qk_pos_emb_head_dim": 16,
    "v_head_dim": 32,
    "position_embedding_type": "rope",
    "qk_layernorm": True,
}


def config_of(modules: list[str], fraction: float = 1.0, **sections: dict[str, Any]) -> Config:
    model = {
        "num_layers": 8,
        "hidden_size": 256,
        "num_attention_heads": 8,
        "vocab_size": 1000,
        "add_bias_linear": False,
        "normalization": "RMSNorm",
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "transformer_impl": "transformer_engine",
        **sections.pop("model", {}),
    }
    offload = {
        "fine_grained_activation_offloading": True,
        "offload_modules": modules,
        "min_offloaded_tensor_size": SMALLEST,
        "activation_offload_fraction": fraction,
    }
    pipelined = sections.get("parallel")  # else each microbatch goes the way of the one before it
    data = {"seq_length": 256, "micro_batch_size": 2, "num_microbatches": 4 if pipelined else 2}
    return Config.model_validate({"model": model, "offload": offload, "data": data, **sections})


def sent(config: Config, rank: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the bytes that the second iteration of ``rank`` sends to the host."""
    bytes_sent = 0
    original = SideStream.host_like

    def counted(stream: SideStream, flat: torch.Tensor) -> torch.Tensor:
        nonlocal bytes_sent
        bytes_sent += flat.nbytes
        return original(stream, flat)

    monkeypatch.setattr(SideStream, "host_like", counted)
    monkeypatch.setattr(SideStream, "copy", lambda *_: None)  # nothing can be copied out of a meta tensor
    world = config.parallel.world_size
    dist.init_process_group("meta:fake,cpu:fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        state = build_parallel_state(config, rank=rank, world_size=world)
        trainer = Trainer(config, state, device=torch.device("meta"))
        trainer.setup()
        for iteration in range(2):
            bytes_sent = 0
            trainer.step(iteration)
    finally:
        dist.destroy_process_group()
    return bytes_sent


@pytest.mark.parametrize(
    ("modules", "model"),
    [
        (DENSE, {}),
        (["core_attn"], {"attention_backend": "unfused", "attention_dropout": 0.1}),
        (DENSE, {"attention_backend": "unfused", "attention_dropout": 0.0}),
        ([*DENSE, "mlp_norm", "expert_fc1", "moe_act"], EXPERTS),
        (["attn_norm", *DENSE], LATENT),
        (["mlp_norm", "expert_fc1", *DENSE], {**EXPERTS, "mtp_num_layers": 2, "position_embedding_type": "rope"}),
    ],
    ids=["dense", "unfused", "without dropout", "experts", "latent", "further"],
)
@pytest.mark.parametrize(
    ("parallel", "rank", "fraction"),
    [
        ({}, 0, 1.0),
        ({"pipeline_model_parallel_size": 2}, 0, 0.5),
        ({"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2}, 1, 0.5),
    ],
    ids=["alone", "first of two", "last, interleaved"],
)
def test_modules_send_what_is_estimated(modules, model, parallel, rank, fraction, monkeypatch) -> None:
    config = config_of(modules, fraction, model=model, parallel=parallel)
    assert offloaded_bytes(config, rank) == sent(config, rank, monkeypatch) > 0


@pytest.mark.parametrize(
    "model",
    [
        {},
        {"attention_backend": "unfused", "attention_dropout": 0.1},
        {"position_embedding_type": "rope", "num_query_groups": 4},
        {"position_embedding_type": "rope", "qk_layernorm": True},
        {"qk_layernorm": True},
    ],
    ids=["flash", "unfused", "rotary", "rotary, normed", "normed"],
)
def test_layers_send_what_is_estimated(model, monkeypatch) -> None:
    """Statistics in fp32 and masks of one byte are judged by their elements, as all tensors."""
    config = config_of([], model={**model, "hidden_dropout": 0.1, "ffn_hidden_size": 512})
    offload = {"cpu_offloading": True, "cpu_offloading_num_layers": 3}
    config = Config.model_validate({**config.model_dump(exclude_unset=True), "offload": offload})
    for module in ("oomscope.model.memory.layer_offload", "oomscope.model.cost.offload_traffic"):
        monkeypatch.setattr(f"{module}.SMALLEST_OFFLOADED", SMALLEST)
    assert offloaded_bytes(config, 0) == sent(config, 0, monkeypatch) > 0
