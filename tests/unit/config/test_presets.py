"""The presets are those of the published models."""

from __future__ import annotations

import pytest

from oomscope.config.load import load_preset
from oomscope.config.presets import preset_names, read_preset
from oomscope.errors import ConfigError
from oomscope.model.cost.parameters import stage_parameters

PARAMETERS = {
    "gpt-tiny": 1_481_472,
    "llama3-8b": 8_030_261_248,  # meta-llama/Meta-Llama-3-8B, model card: 8.03B
    "llama3-70b": 70_553_706_496,  # meta-llama/Meta-Llama-3-70B, model card: 70.6B
    "qwen3-30b-a3b-shaped": 30_532_122_624,  # Qwen/Qwen3-30B-A3B, model card: 30.5B
}


def test_all_presets_are_here() -> None:
    assert preset_names() == tuple(sorted(PARAMETERS))


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_the_published_ones(name: str) -> None:
    alone = [f"parallel.{axis}_parallel_size=1" for axis in ("tensor_model", "pipeline_model", "expert_model")]
    config = load_preset(name, [*alone, "parallel.sequence_parallel=false"], enforce=False).config
    held = stage_parameters(config, config.model.num_layers, pre_process=True, post_process=True)
    assert held == PARAMETERS[name]


@pytest.mark.parametrize("name", PARAMETERS)
def test_presets_break_no_rule(name: str) -> None:
    assert load_preset(name, enforce=False).findings == ()


@pytest.mark.parametrize("name", PARAMETERS)
def test_presets_say_their_source(name: str) -> None:
    assert "Source: " in read_preset(name)


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
