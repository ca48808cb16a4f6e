"""The model keeps, tensor for tensor, what the ledger says."""

from __future__ import annotations

import itertools

import pytest
import torch
import yaml

from oomscope.config.schema import Config
from oomscope.model.cost.parameters import stage_parameters
from oomscope.model.layers import core_attention
from tests.ledgers.layer import kept_layer_ledger, layer_ledger
from tests.ledgers.stage import embedding_ledger, head_ledger, layers_bytes, stage_bytes
from tests.unit.model.conftest import Meter, config_of, hidden_of, saved_by_layer
from tests.unit.model.pairs import pairs

NORMS = ("LayerNorm", "RMSNorm")
GROUPS = (8, 16)  # of 16 heads
MLPS = (
    {"activation_func": "gelu"},
    {"activation_func": "silu", "gated_linear_unit": True},
    {"activation_func": "silu", "gated_linear_unit": True, "bias_activation_fusion": False},
    {"activation_func": "relu"},
    {"activation_func": "squared_relu"},
    {"activation_func": "squared_relu", "gated_linear_unit": True},
)
DROPOUTS = (0.0, 0.1)
BACKENDS = ("flash", "unfused")
SPLITS = ((1, False), (2, False), (2, True), (4, True), (8, False), (8, True))
POSITIONS = ("rope", "learned_absolute")


def layer_config(norm, groups, mlp, dropout, backend, split, positions="rope", **other):
    t, sequence_parallel = split
    return config_of(
        model=dict(
            num_attention_heads=16,
            num_query_groups=groups,
            normalization=norm,
            hidden_dropout=dropout,
            attention_dropout=dropout,
            attention_backend=backend,
            position_embedding_type=positions,
            **{**mlp, **other.pop("model", {})},
        ),
        parallel={"tensor_model_parallel_size": t, "sequence_parallel": sequence_parallel},
        **other,
    )


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_layer_keeps_its_ledger(meta_stage, backend, split):
    for norm, groups, mlp, dropout, positions, fused in pairs(NORMS, GROUPS, MLPS, DROPOUTS, POSITIONS, (True, False)):
        alone = {"num_layers": 1, "apply_rope_fusion": fused}
        config = layer_config(norm, groups, mlp, dropout, backend, split, positions, model=alone)
        kept = saved_by_layer(meta_stage(config), config)
        assert kept == sum(layer_ledger(config).values()), (norm, groups, mlp, dropout, positions, fused)


@pytest.mark.parametrize("modules", [[], ["core_attn"]], ids=["whole", "core_attn"])
@pytest.mark.parametrize("positions", POSITIONS)
def test_flash_attn_keeps_copies_with_the_batch_first(meta_stage, monkeypatch, positions, modules):
    monkeypatch.setattr(core_attention, "capability", lambda device: (8, 0))
    recompute = {"recompute_granularity": "selective", "recompute_modules": modules}
    for groups, dropout, normed in itertools.product(GROUPS, DROPOUTS, (False, True)):
        model = {"qk_layernorm": normed}
        config = layer_config(
            "LayerNorm",
            groups,
            MLPS[0],
            dropout,
            "flash",
            (2, False),
            positions,
            model=model,
            recompute=recompute,
        )
        kept = saved_by_layer(meta_stage(config), config)
        assert kept == sum(kept_layer_ledger(config, flash_attn=True).values()), (groups, dropout, normed)


@pytest.mark.parametrize("implementation", ["local", "transformer_engine"])
@pytest.mark.parametrize(
    "modules", [[], ["core_attn"], ["mlp"], ["layernorm"], ["core_attn", "mlp", "layernorm"]], ids="+".join
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_selective_recomputation_keeps_its_ledger(meta_stage, backend, modules, implementation):
    for dropout, split in itertools.product(DROPOUTS, ((1, False), (2, True))):
        config = layer_config(
            "RMSNorm",
            8,
            MLPS[1],
            dropout,
            backend,
            split,
            model={"transformer_impl": implementation},
            recompute={"recompute_granularity": "selective", "recompute_modules": modules},
        )
        assert saved_by_layer(meta_stage(config), config) == sum(kept_layer_ledger(config).values())


@pytest.mark.parametrize("implementation", ["local", "transformer_engine"])
@pytest.mark.parametrize("modules", [[], ["core_attn"]], ids=["whole", "core_attn"])
@pytest.mark.parametrize("seq_length", [20, 32])
def test_unfused_attention_keeps_its_ledger(meta_stage, implementation, modules, seq_length):
    """With the kernel for 32 tokens, and in the local layers for 20."""
    choices = (GROUPS, POSITIONS, (False, True), DROPOUTS, (False, True))
    for groups, positions, normed, dropout, fused in itertools.product(*choices):
        other = {"transformer_impl": implementation, "qk_layernorm": normed, "masked_softmax_fusion": fused}
        config = layer_config(
            "LayerNorm",
            groups,
            MLPS[1],
            dropout,
            "unfused",
            (1, False),
            positions,
            model=other,
            data={"seq_length": seq_length, "micro_batch_size": 2},
            recompute={"recompute_granularity": "selective", "recompute_modules": modules},
        )
        kept = saved_by_layer(meta_stage(config), config)
        assert kept == sum(kept_layer_ledger(config).values()), (groups, positions, normed, dropout, fused)


OF_MEGATRON = {
    "": 39_616_512,
    "attention_softmax_in_fp32=false": 35_422_208,
    "attention_dropout=0.1": 40_665_088,
    "num_query_groups=2": 39_616_512,
    "position_embedding_type=rope": 43_843_584,
    "position_embedding_type=rope num_query_groups=2": 39_649_280,
    "position_embedding_type=rope qk_layernorm=true": 44_105_728,
    "num_query_groups=2 qk_layernorm=true": 45_023_232,
    "recompute=core_attn": 33_325_056,
    "recompute=core_attn num_query_groups=2": 32_276_480,
    "recompute=core_attn position_embedding_type=rope": 37_552_128,
    "recompute=core_attn position_embedding_type=rope num_query_groups=2": 32_833_536,
    "bias_activation_fusion=false": 50_626_560,
    "bias_activation_fusion=false activation_func=gelu": 50_626_560,
    "activation_func=relu": 39_616_512,
    "activation_func=squared_relu": 50_626_560,
    "gated_linear_unit=false activation_func=gelu add_bias_linear=true": 34_111_488,
}
"""Bytes that a local layer adds to the peak of Megatron-LM at d98e8a64 (4 layers less 3, on the virtual card)."""


@pytest.mark.parametrize("settings", OF_MEGATRON)
def test_the_ledger_is_what_megatron_keeps(settings):
    model = {
        "num_layers": 4,
        "hidden_size": 512,
        "num_attention_heads": 8,
        "ffn_hidden_size": 1344,
        "activation_func": "silu",
        "gated_linear_unit": True,
        "add_bias_linear": False,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "transformer_impl": "local",
        "position_embedding_type": "none",
        "apply_rope_fusion": False,
        "masked_softmax_fusion": False,
        **{key: yaml.safe_load(value) for key, value in (pair.split("=") for pair in settings.split())},
    }
    modules = [module] if (module := model.pop("recompute", None)) else []
    recompute = {"recompute_granularity": "selective", "recompute_modules": modules}
    data = {"seq_length": 64, "micro_batch_size": 32}
    config = Config.model_validate({"model": model, "data": data, "recompute": recompute})
    assert sum(kept_layer_ledger(config).values()) == OF_MEGATRON[settings]


@pytest.mark.parametrize(
    ("method", "group", "checkpoints", "whole"),
    [("uniform", 1, 5, 0), ("uniform", 3, 2, 0), ("uniform", 9, 1, 0), ("block", 2, 2, 3), ("block", 9, 5, 0)],
)
def test_full_recomputation_keeps_inputs(meta_stage, method, group, checkpoints, whole):
    config = config_of(
        model={"num_layers": 5, "position_embedding_type": "rope"},
        recompute={"recompute_granularity": "full", "recompute_method": method, "recompute_num_layers": group},
    )
    stage = meta_stage(config)
    meter = Meter(stage)
    meter(lambda: stage._run_layers(hidden_of(config)))
    hidden = hidden_of(config).numel() * 2
    assert meter.bytes == layers_bytes(config, 5) == checkpoints * hidden + whole * sum(layer_ledger(config).values())


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("dropout", DROPOUTS)
@pytest.mark.parametrize("split", SPLITS)
def test_embedding_and_loss_keep_their_ledger(meta_stage, split, dropout, positions):
    config = layer_config("LayerNorm", 16, MLPS[0], dropout, "flash", split, positions)
    stage = meta_stage(config)
    tokens = torch.empty((2, 16), dtype=torch.int64, device="meta")
    embedding = Meter(stage)
    embedding(lambda: stage.embedding(tokens))
    assert embedding.bytes == sum(embedding_ledger(config).values())
    whole = Meter(stage)
    whole(lambda: stage(tokens, tokens))
    assert whole.bytes == stage_bytes(config, 2, pre_process=True, post_process=True)
    assert whole.bytes == embedding.bytes + layers_bytes(config, 2) + sum(head_ledger(config).values())


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize(
    ("kernels", "version", "bytes_a_logit"),
    [("native", None, 4), ("te", None, 4), ("te", "2.18", 4), ("te", "2.17.1", 0)],
)
def test_a_fused_loss_keeps_its_ledger(meta_stage, kernels, version, bytes_a_logit, half):
    """Transformer Engine's keeps the gradient alone; before 2.18 in the place and in the format of the logits."""
    loss = {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": kernels}
    config = config_of(
        model={**loss, "transformer_engine_version": version, "attention_backend": "unfused"}, precision={"bf16": half}
    )
    stage = meta_stage(config)
    tokens = torch.empty((2, 16), dtype=torch.int64, device="meta")
    meter = Meter(stage)
    meter(lambda: stage(tokens, tokens)).backward()
    assert meter.bytes == stage_bytes(config, 2, pre_process=True, post_process=True)
    kept = head_ledger(config)
    of_logits = kept.get("logits_gradient", 0) + kept.get("vocabulary_softmax", 0)
    assert of_logits == (bytes_a_logit or (2 if half else 4)) * 32 * config.padded_vocab_size


@pytest.mark.parametrize("split", SPLITS)
def test_parameters_are_counted(meta_stage, split):
    for norm, positions, mlp, tied, bias in pairs(NORMS, POSITIONS, MLPS, (False, True), (False, True)):
        biases = {"add_bias_linear": bias, "add_qkv_bias": True}
        other = {**biases, "share_embeddings_and_output_weights": tied, "qk_layernorm": True}
        config = layer_config(norm, 8, mlp, 0.0, "flash", split, positions, model=other)
        held = sum(parameter.numel() for parameter in meta_stage(config).parameters())
        assert held == stage_parameters(config, 2, pre_process=True, post_process=True)
