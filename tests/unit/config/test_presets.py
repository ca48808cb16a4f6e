"""The presets are those of the published models."""

from __future__ import annotations

import pytest

from oomscope.config.load import load_preset
from oomscope.config.presets import preset_names, read_preset
from oomscope.config.schema import Config
from oomscope.errors import ConfigError

PARAMETERS = {
    "gpt-tiny": 1_481_472,
    "llama3-8b": 8_030_261_248,  # meta-llama/Meta-Llama-3-8B, model card: 8.03B
    "llama3-70b": 70_553_706_496,  # meta-llama/Meta-Llama-3-70B, model card: 70.6B
    "qwen3-30b-a3b-shaped": 30_532_122_624,  # Qwen/Qwen3-30B-A3B, model card: 30.5B
}


def parameters(config: Config) -> int:
    """Count the parameters of a whole model, the vocabulary not padded further than the preset's multiple."""
    model, h, d = config.model, config.model.hidden_size, config.head_dim
    bias, norm = int(model.add_bias_linear), 2 if model.normalization == "LayerNorm" else 1
    qkv = (model.num_attention_heads + 2 * config.query_groups) * d
    attention = h * qkv + bias * qkv + model.num_attention_heads * d * h + bias * h
    attention += 2 * d * norm if model.qk_layernorm else 0
    width = model.moe_ffn_hidden_size or config.ffn_size
    halves = 2 if model.gated_linear_unit else 1
    expert = h * width * (halves + 1) + bias * (halves * width + h)
    mlp = expert * (model.num_moe_experts or 1) + (h * model.num_moe_experts if model.num_moe_experts else 0)
    embedding = config.padded_vocab_size * h * (1 if model.share_embeddings_and_output_weights else 2)
    positions = (model.max_position_embeddings or 0) * h if model.position_embedding_type == "learned_absolute" else 0
    return model.num_layers * (attention + mlp + 2 * norm * h) + norm * h + embedding + positions


def test_all_presets_are_here() -> None:
    assert preset_names() == tuple(sorted(PARAMETERS))


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_the_published_ones(name: str) -> None:
    tp1 = ["parallel.tensor_model_parallel_size=1", "parallel.sequence_parallel=false"]
    unpadded = load_preset(name, tp1, enforce=False)
    assert parameters(unpadded.config) == PARAMETERS[name]


@pytest.mark.parametrize("name", PARAMETERS)
def test_presets_break_no_rule(name: str) -> None:
    assert load_preset(name, enforce=False).findings == ()


@pytest.mark.parametrize("name", PARAMETERS)
def test_presets_say_their_source(name: str) -> None:
    assert "Source: " in read_preset(name).summary


def test_the_70b_preset_is_the_one_that_is_timed() -> None:
    config = load_preset("llama3-70b").config
    parallel = config.parallel
    assert (parallel.tensor_model_parallel_size, parallel.pipeline_model_parallel_size) == (8, 4)
    assert parallel.sequence_parallel
    assert (config.num_microbatches, config.data.seq_length, config.data.micro_batch_size) == (4, 8192, 1)


@pytest.mark.parametrize("name", ["llama", "../schema", "", "gpt-tiny.yaml"])
def test_unknown_preset(name: str) -> None:
    with pytest.raises(ConfigError, match="there is no preset"):
        load_preset(name)
