"""Files, texts, presets and mappings become configurations, or errors of one line that say where."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.config.load import config_from_mapping, load_config, load_preset, load_text
from oomscope.config.problems import InvalidConfigError
from oomscope.config.schema import Config
from oomscope.errors import ConfigError

SECTIONS_OR_PRESET = "give sections such as model: and parallel:, or preset: NAME"
MODEL = "model:\n  num_layers: 2\n  hidden_size: 64\n  num_attention_heads: 4\n"


def error_of(text: str | bytes, *overrides: str) -> InvalidConfigError:
    with pytest.raises(InvalidConfigError) as caught:
        load_text(text, source="cfg.yaml", overrides=overrides)
    return caught.value


def test_file(tmp_path: Path) -> None:
    path = tmp_path / "cfg.yaml"
    path.write_text(MODEL + "data:\n  seq_length: 512\ndevice: {limit: 80 GiB}\n")
    loaded = load_config(path, ["data.seq_length=1024", "data.micro_batch_size=2"])
    assert loaded.config.data.seq_length == 1024
    assert loaded.config.device.limit == 80 * 1024**3
    assert loaded.source == str(path)
    assert loaded.origins["model.hidden_size"] == f"{path}:3"
    assert loaded.origins["data.seq_length"] == "override data.seq_length=1024"
    assert "data.global_batch_size" not in loaded.origins


def test_file_upon_preset() -> None:
    loaded = load_text("preset: llama3-8b\ndata:\n  seq_length: 4096\n", source="cfg.yaml")
    assert loaded.config.model.num_layers == 32
    assert loaded.config.data.seq_length == 4096
    assert loaded.config.data.num_microbatches == 4
    assert loaded.origins["data.seq_length"] == "cfg.yaml:3"
    assert loaded.origins["model.num_layers"].startswith("preset llama3-8b:")


def test_empty_sections_set_nothing() -> None:
    assert load_text(MODEL + "parallel:\n", source="cfg.yaml").config.parallel.world_size == 1


def test_aliases_and_merge_keys() -> None:
    text = MODEL + "data: &data\n  seq_length: 256\nprobe:\n  iterations: 3\n"
    assert load_text(text, source="cfg.yaml").config.probe.iterations == 3
    merged = "model:\n  <<: {num_layers: 2, hidden_size: 32}\n  hidden_size: 64\n  num_attention_heads: 4\n"
    config = load_text(merged, source="cfg.yaml").config
    assert (config.model.num_layers, config.model.hidden_size) == (2, 64)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (MODEL + "  hidden_sizes: 3\n", "cfg.yaml:5: unknown key model.hidden_sizes; did you mean hidden_size?"),
        (
            MODEL + "  sequence_parallel: true\n",
            "cfg.yaml:5: unknown key model.sequence_parallel; sequence_parallel belongs to parallel: move it there",
        ),
        (MODEL + "\n\nparalel: {}\n", 'cfg.yaml:7: unknown section "paralel"; did you mean parallel?'),
        (
            MODEL + "seq_length: 8\n",
            'cfg.yaml:5: unknown section "seq_length"; seq_length belongs to data: write it under data:',
        ),
        (MODEL + "tp: 8\n", 'cfg.yaml:5: unknown section "tp"; did you mean parallel.tensor_model_parallel_size?'),
        (MODEL + "  num_layers: 3\n", 'cfg.yaml:5: "num_layers" is given twice (first in line 2); keep one of them'),
        (
            MODEL + "data: {seq_length: '8'}\n",
            (
                'cfg.yaml:5: data.seq_length is "8", but must be a whole number of at least 1; '
                "write the number without quotes"
            ),
        ),
        (
            MODEL + "data: {seq_length: 010}\n",
            (
                'cfg.yaml:5: data.seq_length is "010", but must be a whole number of at least 1; '
                "write the number without the leading zero, which makes it octal for some readers of YAML"
            ),
        ),
        (
            MODEL + "data: {seq_length: 99999999999999999999}\n",
            (
                "cfg.yaml:5: data.seq_length is 99999999999999999999, but must be a whole number of at least 1; "
                "give at most 2147483647"
            ),
        ),
        (
            MODEL + "data:\n  seq_length:\n",
            "cfg.yaml:6: data.seq_length has no value, but must be a whole number of at least 1",
        ),
        (MODEL + "data: 3\n", "cfg.yaml:5: data is 3, but must be a mapping of keys"),
        (
            MODEL + "recompute:\n  recompute_granularity: None\n",
            (
                'cfg.yaml:6: recompute.recompute_granularity is "None", but must be full, selective or null; '
                "write null for none"
            ),
        ),
        (
            MODEL + "recompute:\n  recompute_modules:\n  - mlp\n  - 7\n",
            (
                "cfg.yaml:8: recompute.recompute_modules[1] is 7, but must be a list of "
                "core_attn/mlp/layernorm/moe/moe_act/shared_experts/mla_up_proj/gdn_norm_out/gdp_in_proj/gdp_qkv/mhc "
                "or null"
            ),
        ),
        (
            MODEL + "device: {limit: 80 Gibs}\n",
            'cfg.yaml:5: device.limit is "80 Gibs", but must be a size such as 80GiB or null',
        ),
        (
            MODEL + "probe: {rank: second}\n",
            'cfg.yaml:5: probe.rank is "second", but must be a whole number of at least 0, first, last or worst',
        ),
        (
            MODEL + f"data: {{seq_length: 0x{'f' * 5000}}}\n",
            (
                f"cfg.yaml:5: data.seq_length is 0x{'f' * 54}…f, but must be a whole number of at least 1; "
                "give at most 2147483647"
            ),
        ),
        (MODEL + "optimizer: {lr: .inf}\n", "cfg.yaml:5: optimizer.lr is inf, but must be a number above 0"),
        (
            "model: {num_layers: 2, hidden_size: 64}\n",
            "cfg.yaml:1: model.num_attention_heads is missing; give a whole number of at least 1",
        ),
        ("data: {}\n", "cfg.yaml: model is missing; give model:, or start from a preset with preset: NAME"),
        ("preset: llama-8b\n", 'cfg.yaml:1: there is no preset "llama-8b"; did you mean llama3-8b?'),
        (
            "preset: [1]\n",
            "cfg.yaml:1: there is no preset [1]; presets are gpt-tiny, llama3-70b, llama3-8b, qwen3-30b-a3b-shaped",
        ),
        ("", f"cfg.yaml: holds no configuration; {SECTIONS_OR_PRESET}"),
        (
            "- a\n",
            f"cfg.yaml:1: holds a list where sections are expected; {SECTIONS_OR_PRESET}",
        ),
    ],
)
def test_one_line_names_place_and_remedy(text: str, line: str) -> None:
    assert str(error_of(text)) == line


def test_all_problems_are_listed_first_one_first() -> None:
    error = error_of(MODEL + "data:\n  seq_len: 1\n  micro_batch_size: 0\n", "probe.rank=-1", "x.y=1")
    assert [problem.where for problem in error.problems] == [
        "cfg.yaml:6",
        "override x.y=1",
        "cfg.yaml:7",
        "override probe.rank=-1",
    ]
    assert str(error).startswith(
        "cfg.yaml:6: unknown key data.seq_len; did you mean seq_length? (and 3 more: [2] override"
    )
    assert "\n" not in str(error)


def test_rules_blame_the_line_that_set_the_key() -> None:
    text = MODEL + "parallel:\n  sequence_parallel: true\n"
    assert str(error_of(text)).startswith("cfg.yaml:6: sequence_parallel needs tensor_model_parallel_size above 1")
    error = error_of(MODEL, "parallel.sequence_parallel=true")
    assert str(error).startswith("override parallel.sequence_parallel=true: sequence_parallel needs")


def test_findings_without_enforcement() -> None:
    loaded = load_text(MODEL, source="cfg.yaml", overrides=["parallel.sequence_parallel=true"], enforce=False)
    assert [finding.rule for finding in loaded.findings] == ["P1"]
    assert loaded.warnings[0].where == "override parallel.sequence_parallel=true"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent.yaml", "No such file or directory; give a readable YAML file"),
        ("", "is a directory; give a YAML file"),
    ],
)
def test_unreadable_paths(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / name)
    assert str(caught.value) == f"{tmp_path / name}: {message}"


def test_a_preset_given_as_a_file() -> None:
    with pytest.raises(ConfigError, match="for the preset write --preset gpt-tiny"):
        load_config(Path("gpt-tiny"))


def test_endless_file() -> None:
    with pytest.raises(ConfigError, match="larger than 256 KiB"):
        load_config(Path("/dev/zero"))


@given(st.binary(max_size=200))
def test_random_bytes_are_one_line(data: bytes) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(data, source="cfg.yaml")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("cfg.yaml")


@given(st.text("&*!{}[]:,-?|>'\"%@`#\n \tab1<=.~", max_size=60))
def test_random_yaml_is_one_line(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(text, source="cfg.yaml")
    assert "\n" not in str(caught.value)


def outcome_of(document: dict[str, object]) -> str:
    """Return the error's text, or nothing where the document is taken; any other exception fails the test."""
    try:
        config_from_mapping(document)
    except ConfigError as error:
        return str(error)
    return ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(list(load_preset("gpt-tiny").config.flat()))


@given(KEYS, JSON)
def test_any_value_is_taken_or_refused_in_one_line(key: str, value: object) -> None:
    section, name = key.split(".")
    document = load_preset("gpt-tiny").config.model_dump(mode="json")
    document[section][name] = value
    assert "\n" not in outcome_of(document)


@given(JSON)
def test_any_mapping_is_refused_in_one_line(value: object) -> None:
    for document in ({"model": value}, {"preset": value}, {str(value): value}):
        with pytest.raises(ConfigError) as caught:
            config_from_mapping(document)
        assert "\n" not in str(caught.value)


def test_mapping_round_trip() -> None:
    config = load_preset("llama3-70b").config
    assert config_from_mapping(config.model_dump(mode="json")).config == config
    assert Config.model_validate(config.model_dump(mode="json")) == config
