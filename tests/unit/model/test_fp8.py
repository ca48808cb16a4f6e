"""What products in fp8 keep, on every card and under every recipe, and that they compute what 16 bits compute."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oomscope import virtual
from oomscope.config.schema import Config
from oomscope.errors import ConfigError
from oomscope.model.fp8 import recipe as recipes
from oomscope.model.fp8.recipe import Fp8Recipe, fp8_recipe, is_bf16_layer
from oomscope.model.fp8.tensor import Quantized, quantize
from oomscope.model.fp8.weight import quantized_of
from oomscope.model.parallel.parallel_state import ParallelState, build_parallel_state
from oomscope.model.trainer import Trainer
from tests.ranks import run_ranks

CPU, META = torch.device("cpu"), torch.device("meta")
SCALINGS = ("delayed", "tensorwise", "blockwise", "mxfp8")
WIDE = {"hidden_size": 128, "ffn_hidden_size": 256, "num_attention_heads": 2, "add_bias_linear": False}
PLAIN = {**WIDE, "hidden_dropout": 0.0, "attention_dropout": 0.0, "attention_backend": "flash"}
ROWS = {"seq_length": 64, "micro_batch_size": 2}


def nbytes(matrix: Quantized) -> int:
    return sum(tensor.nbytes for tensor in matrix.tensors() if tensor is not None)


def on_card(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] | None) -> None:
    monkeypatch.setattr(recipes, "capability", lambda device: capability)


@given(
    st.sampled_from(SCALINGS),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.booleans(),
    st.sampled_from([torch.float8_e4m3fn, torch.float8_e5m2]),
)
def test_both_copies_are_near_the_matrix(
    scaling: str, tiles: tuple[int, int], weight: bool, dtype: torch.dtype
) -> None:
    shape = tiles[0] * 32, tiles[1] * 32
    x = torch.randn(shape, generator=torch.Generator().manual_seed(tiles[0]))
    recipe = Fp8Recipe(scaling=scaling, forward_dtype=dtype)  # type: ignore[arg-type]
    made = quantize(x, recipe, columnwise=True, weight=weight)
    step = torch.finfo(dtype).eps * (2 if scaling == "mxfp8" else 1)
    for columnwise in (False, True):
        assert (made.values(columnwise=columnwise) - x).abs().max() <= step * x.abs().max()


@pytest.mark.parametrize(
    ("scaling", "one_copy", "activation", "weight"),
    [
        ("tensorwise", False, 2 * 128 * 256 + 4, 2 * 128 * 256 + 4),
        ("tensorwise", True, 128 * 256 + 4, 128 * 256 + 4),
        ("blockwise", False, 2 * 128 * 256 + 4 * (2 * 128 + 1 * 256), 2 * 128 * 256 + 4 * (1 * 4 + 2 * 4)),
        ("mxfp8", False, 2 * 128 * 256 + 128 * 8 + 4 * 256, 2 * 128 * 256 + 128 * 8 + 4 * 256),
    ],
)
def test_bytes_of_a_matrix_with_both_copies(scaling: str, one_copy: bool, activation: int, weight: int) -> None:
    recipe = Fp8Recipe(scaling=scaling, one_copy=one_copy)  # type: ignore[arg-type]
    x = torch.empty(128, 256, device=META)
    assert nbytes(quantize(x, recipe, columnwise=True)) == activation
    assert nbytes(quantize(x, recipe, columnwise=True, weight=True)) == weight


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
def test_a_recipe_needs_its_card(config_of, monkeypatch, scaling: str, capability: tuple[int, int], fits: bool) -> None:
    on_card(monkeypatch, capability)
    config = config_of(precision={"fp8": "hybrid", "fp8_recipe": scaling})
    if fits:
        assert fp8_recipe(config, META) is not None
    else:
        with pytest.raises(ConfigError, match="needs compute capability"):
            fp8_recipe(config, META)


def test_a_real_card_is_refused_and_a_virtual_one_is_not(config_of, monkeypatch) -> None:
    on_card(monkeypatch, (9, 0))
    config = config_of(precision={"fp8": "hybrid"})
    monkeypatch.setattr(virtual, "is_loaded", lambda: False)
    with pytest.raises(ConfigError, match="real card"):
        fp8_recipe(config, torch.device("cuda"))
    monkeypatch.setattr(virtual, "is_loaded", lambda: True)
    assert fp8_recipe(config, torch.device("cuda")) is not None


def test_layers_at_both_ends_stay_in_16_bits(config_of) -> None:
    config = config_of(
        model={"num_layers": 6}, precision={"first_last_layers_bf16": True, "num_layers_at_end_in_bf16": 2}
    )
    assert [is_bf16_layer(config, layer) for layer in range(6)] == [True, False, False, False, True, True]


def saved(config: Config, meta_stage, meter_of) -> int:
    stage = meta_stage(config)
    meter = meter_of(stage)
    tokens = torch.zeros((config.data.micro_batch_size, config.data.seq_length), dtype=torch.long, device=META)
    meter(lambda: stage(tokens, tokens))
    return meter.bytes


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize(
    ("scaling", "capability"),
    [("delayed", (9, 0)), ("tensorwise", (9, 0)), ("tensorwise", (10, 0)), ("blockwise", (9, 0)), ("mxfp8", (10, 0))],
)
def test_inputs_are_kept_in_fp8(
    config_of, meta_stage, meter_of, monkeypatch, scaling: str, capability: tuple[int, int], sequence_parallel: bool
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
    plain = saved(config_of(**sections), meta_stage, meter_of)
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
    assert saved(config, meta_stage, meter_of) - plain == layers * (of_layer - in_16_bits + weights)


def config_for(scaling: str, **sections: Any) -> Config:
    document: dict[str, Any] = {
        "model": {"num_layers": 2, "vocab_size": 64, "make_vocab_size_divisible_by": 32, **PLAIN},
        "data": {**ROWS, "num_microbatches": 2},
        "precision": {"fp8": "hybrid", "fp8_recipe": scaling},
        "optimizer": {"use_distributed_optimizer": True, "lr": 1e-3},
    }
    for section, keys in sections.items():
        document[section] = {**document.get(section, {}), **keys}
    return Config.model_validate(document)


def losses(config: Config, steps: int, state: ParallelState | None = None) -> list[float]:
    trainer = Trainer(config, state or ParallelState(), device=CPU)
    trainer.setup()
    return [loss.item() for loss in map(trainer.step, range(steps)) if loss is not None]


@pytest.mark.parametrize(("scaling", "fp8_param"), [*product(SCALINGS, [False]), ("tensorwise", True)])
def test_it_learns_what_16_bits_learn(scaling: str, fp8_param: bool) -> None:
    wide = losses(config_for(scaling, precision={"fp8": None}), 3)
    narrow = losses(config_for(scaling, precision={"fp8_param": fp8_param}), 3)
    assert narrow == pytest.approx(wide, rel=2e-3)


@pytest.mark.parametrize(
    "recompute",
    [
        {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
        {"recompute_granularity": "selective", "recompute_modules": ["core_attn", "mlp"]},
    ],
)
def test_recomputation_changes_no_bit(recompute: dict[str, Any]) -> None:
    assert losses(config_for("tensorwise", recompute=recompute), 2) == losses(config_for("tensorwise"), 2)


def test_a_parameter_in_fp8_has_no_other_bytes() -> None:
    config = config_for("tensorwise", precision={"fp8_param": True})
    trainer = Trainer(config, ParallelState(), device=CPU)
    trainer.setup()
    (stage,) = trainer.model
    narrow = [param for param in stage.parameters() if quantized_of(param) is not None]
    assert len(narrow) == 4 * config.model.num_layers
    for param in narrow:
        quantized = quantized_of(param)
        assert quantized is not None
        assert quantized.data is not None
        assert param.dtype == torch.bfloat16
        assert param.untyped_storage().nbytes() == 4  # its scale
        assert quantized.data.dtype == torch.uint8
        assert param.main_grad.dtype == torch.float32  # type: ignore[attr-defined]


def _train(rank: int, folder: str, scaling: str, fp8_param: bool) -> None:
    sizes = {"tensor_model_parallel_size": 2, "sequence_parallel": True, "data_parallel_size": 2}
    data = {"micro_batch_size": 4}
    config = config_for(scaling, parallel=sizes, data=data, precision={"fp8_param": fp8_param})
    mine = losses(config, 2, build_parallel_state(config, rank=rank, world_size=4))
    torch.save(mine, Path(folder) / f"{rank}.pt")


@pytest.mark.parametrize(("scaling", "fp8_param"), [("tensorwise", True), ("mxfp8", False)])
def test_ranks_that_share_matrices_compute_the_same(tmp_path: Path, scaling: str, fp8_param: bool) -> None:
    run_ranks(_train, str(tmp_path), scaling, fp8_param, world=4, folder=tmp_path)
    alone = losses(
        config_for(scaling, data={"micro_batch_size": 4, "num_microbatches": 4}, precision={"fp8_param": fp8_param}),
        2,
    )
    for rank in range(4):
        assert torch.load(tmp_path / f"{rank}.pt") == pytest.approx(alone, rel=2e-3)
