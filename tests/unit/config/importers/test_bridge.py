"""Configurations of Megatron Bridge."""

from __future__ import annotations

import json
from typing import Any

import pytest

from oomscope.config.importers.command_lines import read_arguments
from oomscope.config.importers.importer import import_arguments
from tests.unit.config.importers.foreign import BRIDGE, imported, values


def test_a_bridge_dump() -> None:
    result = imported(BRIDGE)
    assert result.dialect == "bridge"
    assert {
        "model.activation_func": "silu",
        "model.rotary_base": 500000,
        "model.make_vocab_size_divisible_by": 1,
        "parallel.sequence_parallel": True,
        "recompute.recompute_method": "uniform",
        "optimizer.use_distributed_optimizer": True,
        "precision.bf16": True,
        "precision.grad_reduce_in_fp32": True,
        "data.global_batch_size": 64,
        "data.seq_length": 8192,
    }.items() <= values(result).items()
    assert [remark.name for remark in result.not_understood] == ["model.some_new_option"]
    assert "checkpoint.save" in [remark.name for remark in result.without_memory]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("model.q_lora_rank=null", {"model.q_lora_rank": None}),
        ("comm_overlap.tp_comm_overlap=true", {"parallel.tp_comm_overlap": True}),
        ("comm_overlap.wgrad_deferral_limit=-1", {"parallel.wgrad_deferral_limit": 0}),
        ("comm_overlap.batch_p2p_comm=true", {"parallel.batch_p2p_comm": True}),
        ("mixed_precision.fp8_param_gather=true", {"precision.fp8_param": True}),
        ("dist.use_tp_pp_dp_mapping=true", {"parallel.use_tp_pp_dp_mapping": True}),
        ("model.cp_comm_type=[p2p]", {"parallel.cp_comm_type": "p2p"}),
        (
            "dataset.skip_getting_attention_mask_from_dataset=false",
            {"data.create_attention_mask_in_dataloader": True},
        ),
        ("dataset.create_attention_mask=false", {"data.create_attention_mask_in_dataloader": False}),
    ],
)
def test_bridge_overrides(words: str, expected: dict[str, Any]) -> None:
    result = imported(words, "bridge")
    assert values(result) == expected
    assert result.without_memory == ()


def test_what_bridge_packs_or_empties_is_named() -> None:
    assert imported("dataset.packed_sequence_specs.packed_sequence_size=-1", "bridge").not_modelled == ()
    text = "dataset.packed_sequence_specs.packed_sequence_size=4096 train.empty_unused_memory_level=1"
    result = imported(text, "bridge")
    assert [remark.name for remark in result.not_modelled] == ["dataset.packed_sequence_specs.packed_sequence_size"]
    assert any("the cache is not emptied" in text for text in result.assumed)


@pytest.mark.parametrize("name", ["dataset.sequence_length", "dataset.seq_length"])
def test_bridge_takes_one_sequence_length(name: str) -> None:
    assert imported(f"model.seq_length=2048 {name}=2048", "bridge").not_modelled == ()
    (refused,) = imported(f"model.seq_length=2048 {name}=4096", "bridge").not_modelled
    assert (refused.name, refused.value) == (name, 4096)
    assert refused.reason == "model.seq_length is 2048, and Megatron Bridge refuses two lengths"


@pytest.mark.parametrize(
    ("dataset", "on_card"),
    [
        ("", False),
        ("create_attention_mask: true", False),
        ("skip_getting_attention_mask_from_dataset: false", True),
        ("skip_getting_attention_mask_from_dataset: false, create_attention_mask: false", False),
    ],
)
def test_bridge_leaves_the_attention_mask_on_the_host_unless_told(dataset: str, on_card: bool) -> None:
    result = imported(f"model: {{num_layers: 4, pipeline_model_parallel_size: 4}}\ndataset: {{{dataset}}}\n", "bridge")
    assert values(result)["data.create_attention_mask_in_dataloader"] is on_card
    assert any("inner pipeline stages" in text for text in result.assumed) is on_card


GATED = {"num_layers": 2, "gated_linear_unit": True, "bf16": True}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (
            {"model": GATED},
            {
                "model.cross_entropy_loss_fusion": True,
                "model.bias_activation_fusion": False,
                "precision.gradient_accumulation_fusion": True,
                "precision.grad_reduce_in_fp32": False,
            },
        ),
        ({"model": {**GATED, "cross_entropy_loss_fusion": False}}, {"model.cross_entropy_loss_fusion": False}),
        ({"model": {**GATED, "bias_activation_fusion": True}}, {"model.bias_activation_fusion": True}),
        ({"model": {**GATED, "position_embedding_type": "rope"}}, {"model.apply_rope_fusion": False}),
        ({"model": GATED, "mixed_precision": "bf16_mixed"}, {"precision.grad_reduce_in_fp32": True}),
        ({"model": {**GATED, "expert_model_parallel_size": 2}}, {"parallel.expert_tensor_parallel_size": 1}),
    ],
)
def test_what_bridge_s_dataclasses_have_by_another_default(document: Any, expected: dict[str, Any]) -> None:
    assert expected.items() <= values(imported(json.dumps(document), "bridge")).items()


def test_what_lies_upon_a_preset_is_fused_and_keeps_its_mask_on_the_host_too() -> None:
    arguments = read_arguments("cfg.train.micro_batch_size = 1\n", "recipe.py")
    assert values(import_arguments(arguments, "bridge", on_preset=True)) == {
        "model.cross_entropy_loss_fusion": True,
        "precision.gradient_accumulation_fusion": True,
        "data.micro_batch_size": 1,
        "data.create_attention_mask_in_dataloader": False,
    }


@pytest.mark.parametrize(("experts", "is_fused"), [(None, "not given: false"), (8, "true")])
def test_whether_a_gate_is_fused_is_said_where_it_is_not_given(experts: int | None, is_fused: str) -> None:
    result = imported(json.dumps({"model": {**GATED, "num_moe_experts": experts}}), "bridge")
    assert ("model.bias_activation_fusion" in result.settings) is (experts is None)
    assert any(f"bias_activation_fusion is {is_fused}" in text for text in result.assumed)


def test_one_balancing_loss_may_be_a_list_and_several_are_not_modelled() -> None:
    words = "model.moe_router_load_balancing_type=[{}] model.moe_aux_loss_coeff=[{}]"
    one = values(imported(words.format("seq_aux_loss", 0.01), "bridge"))
    assert one == {"model.moe_router_load_balancing_type": "seq_aux_loss", "model.moe_aux_loss_coeff": 0.01}
    several = imported(words.format("aux_loss,seq_aux_loss", "0.01,0.001"), "bridge").not_modelled
    assert [remark.name for remark in several] == ["model.moe_router_load_balancing_type", "model.moe_aux_loss_coeff"]
    assert several[1].reason == "several balancing losses are not modelled"


@pytest.mark.parametrize(
    ("model", "tokenizer", "size", "is_padded"),
    [
        ({"vocab_size": 1000}, {}, 1000, False),
        ({"vocab_size": 1000}, {"vocab_size": 900}, 1000, False),
        ({"vocab_size": 1000, "should_pad_vocab": True}, {}, 1000, True),
        ({}, {"vocab_size": 900}, 900, True),
        ({"should_pad_vocab": False}, {"vocab_size": 900}, 900, True),
        ({"vocab_size": 1000}, {"vocab_size": 900, "use_tokenizer_vocab_size": True}, 900, True),
        ({"vocab_size": 1000}, {"use_tokenizer_vocab_size": True}, 1000, True),
    ],
)
def test_bridge_pads_the_tokenizer_s_vocabulary(model: Any, tokenizer: Any, size: int, is_padded: bool) -> None:
    document = {"model": {"num_layers": 2, **model}, "tokenizer": tokenizer}
    found = values(imported(json.dumps(document), "bridge"))
    assert found["model.vocab_size"] == size
    assert ("model.make_vocab_size_divisible_by" not in found) is is_padded


def test_a_name_of_python_as_size_of_the_vocabulary_is_not_read() -> None:
    result = imported("cfg.tokenizer.vocab_size = VOCAB_SIZE\ncfg.train.micro_batch_size = 1\n")
    assert values(result) == {"data.micro_batch_size": 1}
    assert result.assumed == (
        "tokenizer.vocab_size is not read: VOCAB_SIZE is a name of Python, whose value is not known here",
    )


def test_bridge_overlaps_nothing_without_tensor_parallelism() -> None:
    result = imported("model.num_layers=2 comm_overlap.tp_comm_overlap=true", "bridge")
    assert values(result)["parallel.tp_comm_overlap"] is False
    assert any("tp_comm_overlap is off" in text for text in result.assumed)


def test_a_dtype_of_torch_is_named_as_the_launcher_names_it() -> None:
    text = "model:\n  moe_router_dtype: {_target_: torch.float32, _call_: false}\n"
    assert values(imported(text)) == {"model.moe_router_dtype": "fp32"}
