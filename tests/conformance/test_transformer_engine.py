"""The bundled transformer keeps, layer by layer, what Megatron-LM keeps with TransformerEngine's layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from oomscope.config.schema import Config
from oomscope.model.layers import context_attention, core_attention
from tests.conformance.megatron_stages import layer_kept
from tests.ledgers.layer import kept_layer_ledger

FILE = Path(__file__).with_name("transformer_engine_kept.txt")
LINES = [line for line in FILE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
BASE = (
    "num_layers=2 hidden_size=512 num_attention_heads=8 num_query_groups=4 ffn_hidden_size=1536 gated_linear_unit=true "
    "activation_func=silu normalization=RMSNorm add_bias_linear=false hidden_dropout=0 attention_dropout=0 "
    "vocab_size=512 position_embedding_type=rope seq_length=1024 micro_batch_size=2"
)
SHAPES = {
    "experts": "num_moe_experts=8 moe_router_topk=2 moe_ffn_hidden_size=768 moe_grouped_gemm=true "
    "moe_token_dispatcher_type=alltoall",
    "latent": "multi_latent_attention=true q_lora_rank=96 kv_lora_rank=64 qk_head_dim=32 qk_pos_emb_head_dim=16 "
    "v_head_dim=32 num_query_groups=null",
    "llama": "hidden_size=4096 num_attention_heads=32 num_query_groups=8 ffn_hidden_size=14336 seq_length=8192 "
    "micro_batch_size=1",
}
KERNELS = 128
"""Bytes by which seeds, offsets and scales of the kernels differ: cuDNN's attention has 8 less than torch's."""


def config_of(settings: str) -> Config:
    section_of = {key: name for name, section in Config.model_fields.items() for key in section.annotation.model_fields}
    sections: dict[str, dict[str, Any]] = {}
    for pair in f"{BASE} {' '.join(SHAPES.get(word, word) for word in settings.split())}".split():
        key, value = pair.split("=")
        sections.setdefault(section_of[key], {})[key] = yaml.safe_load(value)
    return Config.model_validate(sections)


@pytest.mark.parametrize("line", LINES)
def test_a_layer_keeps_what_megatron_keeps(fake_world: None, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    for module in (core_attention, context_attention):
        monkeypatch.setattr(module, "capability", lambda device: (9, 0))
    kept, _, settings = line.partition(" ")
    assert layer_kept(config_of(settings)) == pytest.approx(int(kept), abs=KERNELS)


@pytest.mark.parametrize(
    "line", [line for line in LINES if not any(word in line for word in ("fp8", "full", "offload", "experts"))]
)
def test_the_ledger_says_what_megatron_keeps(line: str) -> None:
    kept, _, settings = line.partition(" ")
    config = config_of(f"{settings} attention_backend=flash")
    assert sum(kept_layer_ledger(config).values()) == pytest.approx(int(kept), abs=KERNELS)
