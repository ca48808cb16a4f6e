"""What products in fp8 keep, on every card and under every recipe."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from oomscope import virtual
from oomscope.config.schema import Config
from oomscope.errors import ConfigError
from oomscope.model.fp8 import recipe as recipes
from oomscope.model.fp8.quantized import Quantized, quantize, quantized_of
from oomscope.model.fp8.recipe import fp8_recipe
from tests.unit.model.conftest import Meter, config_of

CPU, META = torch.device("cpu"), torch.device("meta")
WIDE = {"hidden_size": 128, "ffn_hidden_size": 256, "num_attention_heads": 2, "add_bias_linear": False}
PLAIN = {**WIDE, "hidden_dropout": 0.0, "attention_dropout": 0.0, "attention_backend": "flash"}
ROWS = {"seq_length": 64, "micro_batch_size": 2}


def nbytes(matrix: Quantized) -> int:
    return sum(tensor.nbytes for tensor in matrix.tensors() if tensor is not None)


def on_card(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] | None) -> None:
    monkeypatch.setattr(recipes, "capability", lambda device: capability)


@pytest.mark.parametrize(
    ("scaling", "capability", "fits"),
    [
        ("tensorwise", (8, 0), False),
        ("tensorwise", (8, 9), True),
        ("blockwise", (8, 9), False),
        ("blockwise", (9, 0), True),
        ("mxfp8", (9, 0), False),
        ("mxfp8", (10, 0), True),
    ],
)
def test_a_recipe_needs_its_card(monkeypatch, scaling: str, capability: tuple[int, int], fits: bool) -> None:
    on_card(monkeypatch, capability)
    config = config_of(precision={"fp8": "hybrid", "fp8_recipe": scaling})
    if fits:
        assert fp8_recipe(config, META) is not None
    else:
        with pytest.raises(ConfigError, match="needs compute capability"):
            fp8_recipe(config, META)


def test_a_real_card_is_refused_and_a_virtual_one_is_not(monkeypatch) -> None:
    on_card(monkeypatch, (9, 0))
    config = config_of(precision={"fp8": "hybrid"})
    monkeypatch.setattr(virtual, "is_loaded", lambda: False)
    for device in (torch.device("cuda"), CPU):
        with pytest.raises(ConfigError, match="only on a virtual card"):
            fp8_recipe(config, device)
    monkeypatch.setattr(virtual, "is_loaded", lambda: True)
    assert fp8_recipe(config, torch.device("cuda")) is not None


def saved(config: Config, meta_stage) -> int:
    stage = meta_stage(config)
    meter = Meter(stage)
    tokens = torch.zeros((config.data.micro_batch_size, config.data.seq_length), dtype=torch.long, device=META)
    meter(lambda: stage(tokens, tokens))
    return meter.bytes


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize(
    ("scaling", "capability"),
    [("delayed", (9, 0)), ("tensorwise", (9, 0)), ("tensorwise", (10, 0)), ("blockwise", (9, 0)), ("mxfp8", (10, 0))],
)
def test_inputs_are_kept_in_fp8(
    meta_stage, monkeypatch, scaling: str, capability: tuple[int, int], sequence_parallel: bool
) -> None:
    """In place of 2 bytes an element, 1 and its scales; the projection keeps what attention keeps anyway."""
    on_card(monkeypatch, capability)
    t, h, f, rows, layers = 2, 1024, 2048, 1024, 2
    size = {"num_layers": layers, "hidden_size": h, "ffn_hidden_size": f}
    sections: dict[str, Any] = {
        "model": {**PLAIN, **size, "num_attention_heads": 8},
        "data": {"seq_length": rows, "micro_batch_size": 1},
        "parallel": {"tensor_model_parallel_size": t, "sequence_parallel": sequence_parallel},
    }
    plain = saved(config_of(**sections), meta_stage)
    fp8 = {"fp8": "hybrid", "fp8_recipe": scaling}
    config = config_of(**sections, precision=fp8)
    recipe = fp8_recipe(config, META)
    assert recipe is not None
    scattered = rows // t if sequence_parallel else rows
    columnwise = not recipe.one_copy and not (sequence_parallel and recipe.per_tensor)

    def kept(shape: tuple[int, int], columns: bool) -> int:
        scale = torch.Size(recipe.scale_shape(shape, columnwise=columns, weight=False)).numel()
        return shape[0] * shape[1] + scale * recipe.scale_dtype.itemsize

    of_layer = 2 * kept((scattered, h), columnwise) + kept((rows, f // t), not recipe.one_copy)
    in_16_bits = 2 * 2 * scattered * h + 2 * rows * (f // t)
    if scaling == "delayed":  # its projection keeps a copy of what attention keeps
        of_layer += kept((rows, h // t), not recipe.one_copy)
    weights = sum(
        nbytes(quantize(torch.empty(shape, device=META), recipe, columnwise=True, weight=True))
        for shape in ((3 * h // t, h), (h, h // t), (f // t, h), (h, f // t))
    )
    assert saved(config, meta_stage) - plain == layers * (of_layer - in_16_bits + weights)


def test_a_parameter_in_fp8_has_no_other_bytes(meta_stage, monkeypatch) -> None:
    on_card(monkeypatch, (9, 0))
    precision = {"fp8": "hybrid", "fp8_recipe": "tensorwise", "fp8_param": True}
    config = config_of(model={**PLAIN, "num_layers": 2}, data=ROWS, precision=precision)
    narrow = [param for param in meta_stage(config).parameters() if quantized_of(param) is not None]
    assert len(narrow) == 4 * config.model.num_layers
    for param in narrow:
        quantized = quantized_of(param)
        assert quantized is not None
        assert quantized.data is not None
        assert param.dtype == torch.bfloat16
        assert param.untyped_storage().nbytes() == 4  # its scale
        assert quantized.data.dtype == torch.uint8
