"""Types are kept, derived quantities are Megatron's, and every key is documented."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from oomscope.config.key_lookup import accepts, fields
from oomscope.config.load import load_text
from oomscope.config.problems import InvalidConfigError
from oomscope.config.schema import (
    Config,
    DataConfig,
    ModelConfig,
    ParallelConfig,
    PrecisionConfig,
    RecomputeConfig,
)


def config(**sections: object) -> Config:
    model = sections.pop("model", ModelConfig(num_layers=2, hidden_size=64, num_attention_heads=4))
    return Config(model=model, **sections)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["8", True, 8.0, None, 0, 2**31])
def test_counts_are_whole_numbers(value: object) -> None:
    with pytest.raises(ValidationError):
        DataConfig.model_validate({"seq_length": value})


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("model.num_layers=1000000000", "num_layers is 1000000000, but must be a whole number from 1 to 65536"),
        ("model.moe_layer_freq=[1,2]", r"moe_layer_freq is \[1, 2\], but must be"),
        ("model.moe_layer_freq=[[1],2]", "moe_layer_freq is a list, but must be"),
    ],
)
def test_a_value_out_of_bounds_is_quoted(override: str, said: str) -> None:
    with pytest.raises(InvalidConfigError, match=said):
        load_text("{}", source="x", overrides=[override])


def test_sections_do_not_change() -> None:
    with pytest.raises(ValidationError):
        config().data.seq_length = 3  # type: ignore[misc]


def test_padded_vocabulary() -> None:
    tp8 = config(parallel=ParallelConfig(tensor_model_parallel_size=8))
    assert tp8.padded_vocab_size == 51200  # GPT-2's 50257, padded to a multiple of 128 * 8
    assert config().padded_vocab_size == 50304


@pytest.mark.parametrize(
    ("data", "dp", "microbatches"),
    [
        (DataConfig(), 1, 1),
        (DataConfig(num_microbatches=3), 2, 3),
        (DataConfig(global_batch_size=32, micro_batch_size=2), 4, 4),
    ],
)
def test_microbatches(data: DataConfig, dp: int, microbatches: int) -> None:
    assert config(data=data, parallel=ParallelConfig(data_parallel_size=dp)).num_microbatches == microbatches


@pytest.mark.parametrize(
    ("settings", "softmax"),
    [
        ("seq_length=1024", "kernel"),
        ("seq_length=1024 num_attention_heads=5", "fp32"),
        ("seq_length=1020", "fp32"),
        ("seq_length=16384", "fp32"),
        ("seq_length=16", "fp32"),
        ("seq_length=1024 transformer_impl=local", "kernel"),
        ("seq_length=4096 transformer_impl=local", "kernel"),
        ("seq_length=1020 transformer_impl=local", "kernel"),
        ("seq_length=1022 transformer_impl=local", "fp32"),
        ("seq_length=4100 transformer_impl=local", "fp32"),
        ("seq_length=128 transformer_impl=local", "fp32"),
        ("seq_length=128 transformer_impl=local micro_batch_size=2", "kernel"),
        ("seq_length=1024 transformer_impl=local tensor_model_parallel_size=2", "fp32"),
        ("seq_length=1024 transformer_impl=local masked_softmax_fusion=false", "fp32"),
        ("seq_length=8192 transformer_impl=local attention_softmax_in_fp32=false", "as scores"),
        ("seq_length=1024 bf16=false", "as scores"),
    ],
)
def test_softmax_kernels_want_certain_sizes(settings: str, softmax: str) -> None:
    homes = {"seq_length": "data", "micro_batch_size": "data", "tensor_model_parallel_size": "parallel"}
    overrides = [f"{homes.get(pair.split('=')[0], 'model')}.{pair}" for pair in settings.split()]
    overrides = [override.replace("model.bf16", "precision.bf16") for override in overrides]
    shape = ["model.num_layers=2", "model.hidden_size=320", "model.num_attention_heads=4"]
    assert load_text("{}", source="x", overrides=[*shape, *overrides], enforce=False).config.softmax == softmax


@pytest.mark.parametrize(
    ("implementation", "bf16", "backend"),
    [("transformer_engine", True, "flash"), ("local", True, "unfused"), ("transformer_engine", False, "unfused")],
)
def test_auto_attention(implementation: str, bf16: bool, backend: str) -> None:
    model = ModelConfig.model_validate(
        {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "transformer_impl": implementation}
    )
    assert config(model=model, precision=PrecisionConfig(bf16=bf16)).attention_backend == backend


@pytest.mark.parametrize(("named", "kernels"), [("auto", "auto"), ("flash", "flash"), ("fused", "fused")])
def test_attention_without_scores_is_somebodys(named: str, kernels: str) -> None:
    model = ModelConfig.model_validate(
        {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "attention_backend": named}
    )
    assert (config(model=model).attention_backend, config(model=model).flash_kernels) == ("flash", kernels)


@pytest.mark.parametrize(
    ("recompute", "modules"),
    [
        (RecomputeConfig(), ()),
        (RecomputeConfig(recompute_granularity="selective"), ("core_attn",)),
        (RecomputeConfig(recompute_granularity="selective", recompute_modules=()), ()),
        (RecomputeConfig(recompute_granularity="full", recompute_modules=("mlp",)), ()),
    ],
)
def test_recomputed_modules(recompute: RecomputeConfig, modules: tuple[str, ...]) -> None:
    assert config(recompute=recompute).recompute_modules == modules


def test_flat_lists_every_key_in_order() -> None:
    assert list(config().flat()) == [f"{section}.{key}" for section, key, _ in fields()]


def test_no_key_has_two_homes() -> None:
    keys = [key for _, key, _ in fields()]
    assert len(keys) == len(set(keys))


def test_every_key_says_what_it_is() -> None:
    for section, key, info in fields():
        assert info.description, key
        assert accepts(section, key)
