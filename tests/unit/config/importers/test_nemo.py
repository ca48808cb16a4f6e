"""Configurations of NeMo."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.config.importers.foreign import NEMO, imported, values


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            "model.activations_checkpoint_granularity=full model.activations_checkpoint_method=block",
            {
                "recompute.recompute_granularity": "full",
                "recompute.recompute_method": "block",
            },
        ),
        ("model.activations_checkpoint_num_layers=4", {"recompute.recompute_num_layers": 4}),
        ("activations_checkpoint_granularity=selective", {"recompute.recompute_granularity": "selective"}),
        (
            "model.activations_checkpoint_granularity=selective model.activations_checkpoint_method=uniform",
            {"recompute.recompute_granularity": "selective"},
        ),
        (
            "model.get_attention_mask_from_fusion=false",
            {"data.create_attention_mask_in_dataloader": True},
        ),
        ("model.megatron_amp_O2=true model.activation=fast-swiglu", {"model.gated_linear_unit": True}),
    ],
)
def test_nemo_overrides(words: str, expected: dict[str, Any]) -> None:
    result = imported(words)
    assert result.dialect == "nemo"
    assert expected.items() <= values(result).items()
    if "selective" in words:
        assert "recompute.recompute_method" not in result.settings


def test_a_nemo_configuration() -> None:
    result = imported(NEMO % ("true", "null"))
    assert {
        "model.max_position_embeddings": 2048,
        "model.transformer_impl": "local",
        "parallel.data_parallel_size": 2,
        "optimizer.adam_beta2": 0.95,
        "optimizer.use_distributed_optimizer": True,
        "precision.bf16": True,
        "data.create_attention_mask_in_dataloader": False,
    }.items() <= values(result).items()
    assert result.not_modelled == ()


def test_nemo_overrides_what_cannot_be() -> None:
    text = "{trainer: {devices: 8}, model: {num_layers: 2, optim: {name: %s}, sequence_parallel: true, "
    text += "gradient_accumulation_fusion: true, ub_tp_comm_overlap: true, position_embedding_type: rope}}"
    changed = values(imported(text % "fused_adam", "nemo"))
    assert {
        "model.apply_rope_fusion": False,
        "parallel.sequence_parallel": False,
        "parallel.tp_comm_overlap": False,
        "parallel.deallocate_pipeline_outputs": False,
        "precision.gradient_accumulation_fusion": False,
    }.items() <= changed.items()
    assert values(imported(text % "distributed_fused_adam", "nemo"))["precision.gradient_accumulation_fusion"] is True


@pytest.mark.parametrize("words", ["trainer.strategy=fsdp", "model.fsdp=true", "model.optim.grad_sync_dtype=bf16"])
def test_what_of_nemo_is_not_there_is_named(words: str) -> None:
    result = imported(words, "nemo")
    assert [remark.name for remark in result.not_modelled] == [words.partition("=")[0]]


def test_what_nemo_has_and_core_has_not_is_not_modelled() -> None:
    names = [remark.name for remark in imported(NEMO % ("false", "1")).not_modelled]
    assert names == ["model.activations_checkpoint_layers_per_pipeline", "model.megatron_amp_O2"]
