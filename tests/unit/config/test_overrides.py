"""``section.key=value`` on the command line."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.config.key_lookup import fields
from oomscope.config.load import load_preset
from oomscope.config.schema import Config
from oomscope.config.settings import layer_of_overrides
from oomscope.errors import ConfigError


def overridden(*overrides: str) -> Config:
    return load_preset("gpt-tiny", overrides).config


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("model.num_layers=6", 6),
        (" model.num_layers = 6 ", 6),
        ("optimizer.lr=3e-4", 3e-4),
        ("optimizer.lr=1", 1.0),
        ("precision.gradient_accumulation_fusion=true", True),
        ("model.kv_channels=", None),
        ("model.kv_channels=null", None),
        ("device.limit=79.5GiB", 85362475008),
        ("device.gpu=h200", "h200"),
        ("device.gpu=", None),
        ("allocator.conf=", ""),
        (
            "allocator.conf=roundup_power2_divisions:[256:1,512:2],max_split_size_mb:64",
            "roundup_power2_divisions:[256:1,512:2],max_split_size_mb:64",
        ),
        ("allocator.conf='expandable_segments:True'", "expandable_segments:True"),
        ("device.cublas_workspace_config=:4096:8", ":4096:8"),
        ("probe.rank=worst", "worst"),
        ("recompute.recompute_modules=[mlp]", ("mlp",)),
    ],
)
def test_values(override: str, value: object) -> None:
    section, key = override.split("=")[0].strip().split(".")
    extra = ["recompute.recompute_granularity=selective"] if section == "recompute" else []
    assert getattr(getattr(overridden(override, *extra), section), key) == value


def test_last_one_counts() -> None:
    assert overridden("model.num_layers=6", "model.num_layers=8").model.num_layers == 8


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("x", "override x: no equals sign; write section.key=value"),
        ("", "override : no equals sign; write section.key=value"),
        ("num_layers=3", 'override num_layers=3: "num_layers" names no section; write model.num_layers=value'),
        ("tp=3", 'override tp=3: "tp" names no section; write parallel.tensor_model_parallel_size=value'),
        ("what=3", 'override what=3: "what" names no section; write section.key=value'),
        (
            "recompute=full",
            (
                'override recompute=full: "recompute" is a section, not a key; write '
                "recompute.recompute_granularity=full; keys of recompute are recompute_granularity, recompute_method, "
                "recompute_num_layers, recompute_modules, distribute_saved_activations"
            ),
        ),
        (
            "model.=3",
            (
                'override model.=3: "model" is a section, not a key; write model.key=value; '
                "see `oomscope config schema` for model"
            ),
        ),
        ("model.a.b=3", "override model.a.b=3: unknown key model.a.b; see `oomscope config schema` for model"),
        (
            "model.num_layers=[1",
            (
                "override model.num_layers=[1: not YAML: expected ',' or ']', but got '<stream end>' "
                "while parsing a flow sequence; quote the value"
            ),
        ),
        (
            "model.normalization=rmsnorm",
            'override model.normalization=rmsnorm: model.normalization is "rmsnorm", but must be LayerNorm or RMSNorm',
        ),
    ],
)
def test_errors_name_the_override(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        overridden(override)
    assert str(caught.value) == message


@given(st.lists(st.text(max_size=30), max_size=3))
def test_any_text_is_refused_in_one_line(overrides: list[str]) -> None:
    if not overrides:
        return
    with pytest.raises(ConfigError) as caught:
        overridden(*overrides)
    assert "\n" not in str(caught.value)


KEYS = st.sampled_from([(section, key) for section, key, _ in fields()])


@given(KEYS, st.text(max_size=20))
def test_any_value_is_taken_or_refused(key: tuple[str, str], value: str) -> None:
    with suppress(ConfigError):
        overridden(f"{key[0]}.{key[1]}={value}")


@given(KEYS, st.integers(-5, 5) | st.booleans() | st.none())
def test_a_layer_holds_what_was_written(key: tuple[str, str], value: object) -> None:
    written = "null" if value is None else str(value).lower()
    layer = layer_of_overrides([f"{key[0]}.{key[1]}={written}"])
    assert layer.problems == []
    assert layer.settings[key].value in (value, written)
