"""The bounds hold for every tensor of the ledger, which the model is held to."""

from __future__ import annotations

import pytest

from oomscope.config.load import load_preset
from oomscope.config.presets import preset_names
from oomscope.config.rules.saved_tensors import largest_of_layer, largest_of_module
from oomscope.model.cost.parameters import element_bytes
from tests.ledgers.layer import layer_ledger


@pytest.mark.parametrize("backend", ["flash", "unfused"])
@pytest.mark.parametrize("preset", preset_names())
def test_no_tensor_is_larger_than_the_bound(preset: str, backend: str) -> None:
    config = load_preset(preset, (f"model.attention_backend={backend}",)).config
    for layer in range(config.model.num_layers):
        rows = layer_ledger(config, layer)
        assert max(rows.values()) <= largest_of_layer(config) * element_bytes(config)
        attention = [rows[name] for name in ("attention_output", "softmax") if name in rows]
        assert max(attention) <= largest_of_module(config, "core_attn") * element_bytes(config)
        assert rows["qkv_input"] <= largest_of_module(config, "qkv_linear") * element_bytes(config)
