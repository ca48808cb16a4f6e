"""The schema for editors accepts what is accepted and refuses what is refused."""

from __future__ import annotations

import json

import jsonschema
import pytest

from oomscope.config.key_lookup import json_schema
from oomscope.config.load import load_preset
from oomscope.config.presets import preset_names, read_preset
from oomscope.config.yaml_tree import read_yaml

MODEL = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4}


def accepts(document: object) -> bool:
    return bool(jsonschema.Draft202012Validator(json_schema()).is_valid(document))


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())
    json.dumps(json_schema())


@pytest.mark.parametrize("name", preset_names())
def test_presets_and_whole_configurations_are_accepted(name: str) -> None:
    assert accepts(read_yaml(read_preset(name), name)[0].value)
    assert accepts(load_preset(name, enforce=False).config.model_dump(mode="json"))


@pytest.mark.parametrize(
    "document",
    [
        {"model": MODEL},
        {"preset": "gpt-tiny"},
        {"preset": "gpt-tiny", "model": {"num_layers": 3}},
        {"model": MODEL, "device": {"limit": "80GiB", "non_torch_bytes": 3}},
    ],
)
def test_accepted(document: object) -> None:
    assert accepts(document)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"model": {"num_layers": 2}},
        {"preset": "gpt-3"},
        {"model": {**MODEL, "layers": 3}},
        {"model": MODEL, "device": {"limit": "much"}},
        {"model": MODEL, "recompute": {"recompute_granularity": "fully"}},
        {"model": MODEL, "parallell": {}},
    ],
)
def test_refused(document: object) -> None:
    assert not accepts(document)
