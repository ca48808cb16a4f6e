"""Each rule in both directions, and the order in which broken rules are named."""

from __future__ import annotations

from typing import Any

import pytest

from oomscope.config.keys import fields
from oomscope.config.load import config_from_mapping
from oomscope.config.problems import InvalidConfigError
from oomscope.config.rule import Finding
from oomscope.config.rules import RULES, check, validate

BASE = {
    "model.num_layers": 4,
    "model.hidden_size": 128,
    "model.num_attention_heads": 4,
    "model.attention_dropout": 0.0,
    "data.seq_length": 128,
}
FULL = {"recompute.recompute_granularity": "full"}
UNIFORM = {**FULL, "recompute.recompute_method": "uniform", "recompute.recompute_num_layers": 1}
BLOCK = {**UNIFORM, "recompute.recompute_method": "block"}
SELECTIVE = {"recompute.recompute_granularity": "selective"}
MODULES = "recompute.recompute_modules"
DISTRIBUTE = {**UNIFORM, "recompute.distribute_saved_activations": True}
OFFLOAD = {"offload.cpu_offloading": True, "offload.cpu_offloading_num_layers": 2}
TP2 = {"parallel.tensor_model_parallel_size": 2}
SP2 = {**TP2, "parallel.sequence_parallel": True}
MOE = {"model.num_moe_experts": 8, "model.add_bias_linear": False}
LOCAL = {"model.transformer_impl": "local"}

Settings = dict[str, Any]

CASES: dict[str, tuple[list[Settings], list[Settings]]] = {
    "P1": ([{"parallel.sequence_parallel": True}], [{}, TP2, SP2]),
    "P2": ([{"parallel.tensor_model_parallel_size": 3}], [TP2]),
    "P3": ([{"model.num_query_groups": 3}, {"model.num_query_groups": 8}], [{"model.num_query_groups": 2}]),
    "P4": (
        [{"model.num_attention_heads": 12, "model.kv_channels": 32, "model.num_query_groups": 3, **TP2}],
        [{"model.num_query_groups": 1, **TP2}, {"model.num_query_groups": 4, **TP2}],
    ),
    "P5": ([{"model.ffn_hidden_size": 129, **TP2}], [TP2, {"model.ffn_hidden_size": 129}]),
    "P6": ([{"parallel.pipeline_model_parallel_size": 3}], [{"parallel.pipeline_model_parallel_size": 4}]),
    "P7": ([{**SP2, "data.seq_length": 127}], [SP2, {**TP2, "data.seq_length": 127}]),
    "P8": ([{"parallel.expert_model_parallel_size": 2}], [{**MOE, "parallel.expert_model_parallel_size": 2}]),
    "P9": ([{**MOE, "parallel.expert_model_parallel_size": 3}], [{**MOE, "parallel.expert_model_parallel_size": 4}]),
    "P10": (
        [{**MOE, "parallel.expert_model_parallel_size": 2, "parallel.data_parallel_size": 3}],
        [
            {**MOE, "parallel.expert_model_parallel_size": 2, "parallel.data_parallel_size": 4},
            {**MOE, **TP2, "parallel.expert_tensor_parallel_size": 1, "parallel.expert_model_parallel_size": 2},
        ],
    ),
    "P11": ([{**MOE, **TP2}], [{**MOE, **SP2}, TP2, MOE]),
    "M1": ([{"precision.fp16": True}], [{}, {"precision.fp16": True, "precision.bf16": False}]),
    "M2": ([{"model.hidden_size": 130}], [{}, {"model.hidden_size": 130, "model.kv_channels": 32}]),
    "M3": (
        [{"model.kv_channels": 33, "model.position_embedding_type": "rope"}],
        [{"model.kv_channels": 33}, {"model.position_embedding_type": "rope"}],
    ),
    "M4": (
        [{"model.max_position_embeddings": 127}],
        [
            {},
            {"model.max_position_embeddings": 128},
            {"model.max_position_embeddings": 127, "model.position_embedding_type": "rope"},
        ],
    ),
    "M5": (
        [{"model.attention_backend": "flash", "precision.bf16": False}],
        [{"model.attention_backend": "flash"}, {"precision.bf16": False}],
    ),
    "M6": (
        [{"model.kv_channels": 264}],
        [{"model.kv_channels": 256}, {"model.kv_channels": 264, "model.attention_backend": "unfused"}],
    ),
    "M7": ([{**MOE, "model.moe_router_topk": 9}], [{**MOE, "model.moe_router_topk": 8}, {"model.moe_router_topk": 9}]),
    "M8": ([{"model.moe_ffn_hidden_size": 64}], [{**MOE, "model.moe_ffn_hidden_size": 64}, {}]),
    "M9": (
        [{"precision.bf16": False, "precision.grad_reduce_in_fp32": False}],
        [{"precision.grad_reduce_in_fp32": False}, {"precision.bf16": False}],
    ),
    "O1": (
        [
            {**OFFLOAD, "offload.cpu_offloading_num_layers": 4},
            {**OFFLOAD, "offload.cpu_offloading_num_layers": -1},
        ],
        [{**OFFLOAD, "offload.cpu_offloading_num_layers": 3}, {"offload.cpu_offloading_num_layers": 4}],
    ),
    "O2": ([{**OFFLOAD, "parallel.pipeline_model_parallel_size": 2}], [OFFLOAD]),
    "R21": ([{**OFFLOAD, **SELECTIVE, MODULES: []}, {**OFFLOAD, **UNIFORM}], [OFFLOAD, SELECTIVE]),
    "O3": (
        [{**OFFLOAD, "offload.fine_grained_activation_offloading": True}],
        [OFFLOAD, {"offload.fine_grained_activation_offloading": True}],
    ),
    "O4": (
        [{**OFFLOAD, "offload.cpu_offloading_activations": False}],
        [OFFLOAD, {"offload.cpu_offloading_activations": False}],
    ),
    "O5": ([{**OFFLOAD, "offload.cpu_offloading_weights": True}], [OFFLOAD, {"offload.cpu_offloading_weights": True}]),
    "O6": ([{**OFFLOAD, "offload.cpu_offloading_double_buffering": True}], [OFFLOAD]),
    "O7": ([{"offload.cpu_offloading": True}], [OFFLOAD, {}]),
    "O8": (
        [{**OFFLOAD, "offload.cpu_offloading_num_layers": 3}],
        [OFFLOAD, {"model.num_layers": 1, "offload.cpu_offloading": True}],
    ),
    "O9": ([{"offload.cpu_offloading_num_layers": 2}], [OFFLOAD, {}]),
    "O10": (
        [{"optimizer.optimizer_cpu_offload": True}],
        [{}, {"optimizer.optimizer_cpu_offload": True, "optimizer.optimizer_offload_fraction": 0.5}],
    ),
    "O11": ([{"optimizer.use_torch_optimizer_for_cpu_offload": True}], [{}]),
    "O12": (
        [{"optimizer.optimizer_offload_fraction": 0.5}, {"optimizer.overlap_cpu_optimizer_d2h_h2d": True}],
        [{"optimizer.optimizer_offload_fraction": 0.5, "optimizer.optimizer_cpu_offload": True}, {}],
    ),
    "R1": ([{"recompute.recompute_granularity": "fully"}], [UNIFORM, SELECTIVE, {}]),
    "R2": ([{**UNIFORM, "recompute.recompute_method": "uniformly"}], [UNIFORM, BLOCK, FULL]),
    "R3": ([FULL, {**FULL, "recompute.recompute_num_layers": 1}], [UNIFORM, SELECTIVE]),
    "R4": ([FULL, {**FULL, "recompute.recompute_method": "block"}], [UNIFORM, SELECTIVE]),
    "R5": ([{**SELECTIVE, "recompute.recompute_num_layers": 1}], [SELECTIVE, UNIFORM]),
    "R6": ([{**DISTRIBUTE, **SP2}], [{**DISTRIBUTE, **TP2}, {**UNIFORM, **SP2}]),
    "R7": ([{**SELECTIVE, MODULES: ["mlp", "mpl"]}], [{**SELECTIVE, MODULES: ["mlp"]}, {**SELECTIVE, MODULES: []}]),
    "R9": ([{**SELECTIVE, MODULES: ["mla_up_proj"]}], [SELECTIVE, {MODULES: ["mla_up_proj"]}]),
    "R18": (
        [SELECTIVE, {**SELECTIVE, MODULES: ["mlp", "core_attn"]}],
        [{**SELECTIVE, "model.attention_backend": "unfused"}, {**SELECTIVE, **LOCAL}, {**SELECTIVE, MODULES: ["mlp"]}],
    ),
    "R19": ([{**SELECTIVE, "recompute.recompute_method": "block"}], [SELECTIVE, BLOCK]),
    "R20a": ([DISTRIBUTE], [{**DISTRIBUTE, **TP2}, UNIFORM]),
    "R20b": (
        [
            {"recompute.distribute_saved_activations": True, **TP2},
            {"recompute.distribute_saved_activations": True, **SELECTIVE, **TP2},
        ],
        [{**DISTRIBUTE, **TP2}],
    ),
    "R23": (
        [{**UNIFORM, "recompute.recompute_num_layers": 0}, {**UNIFORM, "recompute.recompute_num_layers": -1}],
        [UNIFORM, {**BLOCK, "recompute.recompute_num_layers": 0}],
    ),
    "R24": (
        [{**BLOCK, "recompute.recompute_num_layers": 0}],
        [BLOCK, {**UNIFORM, "recompute.recompute_num_layers": 0}],
    ),
    "R25": (
        [
            {**UNIFORM, "recompute.recompute_num_layers": 5},
            {**BLOCK, "recompute.recompute_num_layers": 3, "parallel.pipeline_model_parallel_size": 2},
        ],
        [{**UNIFORM, "recompute.recompute_num_layers": 4}],
    ),
    "R26": (
        [{**SELECTIVE, MODULES: ["layernorm"]}],
        [{**SELECTIVE, MODULES: ["layernorm"], **LOCAL}, {**SELECTIVE, MODULES: ["layernorm"], **MOE}],
    ),
    "R27a": ([{**SELECTIVE, MODULES: ["mlp"], **MOE}], [{**SELECTIVE, MODULES: ["mlp"]}]),
    "R27b": (
        [{**SELECTIVE, MODULES: ["moe", "moe_act"]}],
        [{**SELECTIVE, MODULES: ["moe"], **MOE}, {MODULES: ["moe"]}],
    ),
    "R28": ([{MODULES: ["mlp"]}, {**UNIFORM, MODULES: ["mlp"]}], [{**SELECTIVE, MODULES: ["mlp"]}, UNIFORM]),
    "R29": (
        [{"recompute.recompute_method": "block"}, {"recompute.recompute_num_layers": 2}],
        [{}, UNIFORM, {**SELECTIVE, "recompute.recompute_method": "block"}],
    ),
    "B1": (
        [{"data.global_batch_size": 3, "parallel.data_parallel_size": 2}],
        [{"data.global_batch_size": 4, "parallel.data_parallel_size": 2}, {}],
    ),
    "B2": (
        [{"data.global_batch_size": 4, "data.num_microbatches": 3}],
        [{"data.global_batch_size": 4, "data.num_microbatches": 4}, {"data.num_microbatches": 3}],
    ),
    "N-vpp": (
        [{"parallel.virtual_pipeline_model_parallel_size": 2, "parallel.pipeline_model_parallel_size": 2}],
        [{"parallel.virtual_pipeline_model_parallel_size": 1}, {}],
    ),
    "N-cp": ([{"parallel.context_parallel_size": 2}], [{}]),
    "N-shared-groups": (
        [{"model.num_query_groups": 1, **TP2}],
        [{"model.num_query_groups": 2, **TP2}, {"model.num_query_groups": 1}],
    ),
    "N-expert-bias": ([{**MOE, "model.add_bias_linear": True}], [MOE, {"model.add_bias_linear": True}]),
    "N-etp": (
        [{**MOE, **SP2}, {**MOE, "parallel.expert_tensor_parallel_size": 2, "parallel.data_parallel_size": 2}],
        [{**MOE, **SP2, "parallel.expert_tensor_parallel_size": 1}, TP2],
    ),
    "N-fp16": ([{"precision.fp16": True, "precision.bf16": False}], [{}, {"precision.bf16": False}]),
    "N-fine-grained-offload": ([{"offload.fine_grained_activation_offloading": True}], [OFFLOAD]),
    "N-optimizer-offload": (
        [{"optimizer.optimizer_cpu_offload": True, "optimizer.optimizer_offload_fraction": 0.5}],
        [{"optimizer.optimizer_cpu_offload": True}, {"optimizer.optimizer_offload_fraction": 0.5}],
    ),
    "N-overlap": (
        [{"optimizer.overlap_param_gather": True}],
        [{"optimizer.overlap_grad_reduce": True}, {"optimizer.use_distributed_optimizer": True}],
    ),
    "N-recompute-moe": ([{**MOE, **SELECTIVE, MODULES: ["moe_act"]}], [{**SELECTIVE, MODULES: ["moe_act"]}, MOE]),
    "D1": (
        [{"optimizer.use_distributed_optimizer": True}],
        [{"optimizer.use_distributed_optimizer": True, "parallel.data_parallel_size": 2}, {}],
    ),
    "D2": ([{"probe.rank": 1}], [{"probe.rank": 0}, {"probe.rank": "last"}, {"probe.rank": 1, **TP2}]),
    "D3": (
        [{"device.limit": "1GiB"}, {"device.limit": "3GiB", "device.other_process_bytes": "2GiB"}],
        [{"device.limit": "2GiB"}, {"device.other_process_bytes": "90GiB"}],
    ),
    "D4": (
        [{"probe.world_size": 2}, {"probe.world_size": 1, **TP2}],
        [{"probe.world_size": 1}, {"probe.world_size": 2, **TP2}, TP2],
    ),
}


def nested(settings: Settings) -> dict[str, dict[str, Any]]:
    document: dict[str, dict[str, Any]] = {}
    for name, value in {**BASE, **settings}.items():
        section, key = name.split(".")
        document.setdefault(section, {})[key] = value
    return document


def findings(settings: Settings) -> list[Finding]:
    return list(config_from_mapping(nested(settings), enforce=False).findings)


def refused(settings: Settings) -> InvalidConfigError:
    with pytest.raises(InvalidConfigError) as caught:
        config_from_mapping(nested(settings))
    return caught.value


def rules_named(settings: Settings) -> list[str | None]:
    """Return the rules that are named, whether the configuration is refused or warned about."""
    try:
        return [finding.rule for finding in findings(settings)]
    except InvalidConfigError as error:
        return [problem.rule for problem in error.problems]


def cases(side: int) -> list[Any]:
    return [
        pytest.param(rule, case, id=f"{rule}-{n}") for rule, pair in CASES.items() for n, case in enumerate(pair[side])
    ]


def test_every_rule_has_cases_and_its_own_id() -> None:
    assert list(CASES) == [rule.id for rule in RULES]


@pytest.mark.parametrize(("rule", "settings"), cases(0))
def test_rule_is_broken(rule: str, settings: Settings) -> None:
    assert rule in rules_named(settings)


@pytest.mark.parametrize(("rule", "settings"), cases(1))
def test_rule_is_kept(rule: str, settings: Settings) -> None:
    assert rule not in rules_named(settings)


@pytest.mark.parametrize(("rule", "settings"), cases(0))
def test_errors_refuse_and_warnings_do_not(rule: str, settings: Settings) -> None:
    severity = next(row.severity for row in RULES if row.id == rule)
    others_refuse = any(finding.is_fatal for finding in findings(settings)) if rule not in {"R1", "R2", "R7"} else True
    if severity == "warning" and not others_refuse:
        loaded = config_from_mapping(nested(settings))
        assert rule in [warning.rule for warning in loaded.warnings]
    else:
        assert severity == "warning" or rule in [problem.rule for problem in refused(settings).problems]


def test_base_breaks_nothing() -> None:
    assert findings({}) == []


def test_rules_name_existing_keys() -> None:
    known = {f"{section}.{key}" for section, key, _ in fields()}
    assert {key for rule in RULES for key in rule.keys} <= known


@pytest.mark.parametrize("granularity", ["fully", "selective", "full"])
def test_offloading_is_named_before_recomputation(granularity: str) -> None:
    error = refused({**OFFLOAD, "recompute.recompute_granularity": granularity})
    assert error.problems[0].rule == "R21"


def test_a_wrong_method_without_granularity_is_still_refused() -> None:
    error = refused({"recompute.recompute_method": "uniformly"})
    assert str(error) == (
        'configuration: recompute.recompute_method is "uniformly", but must be uniform, block or null'
    )


def test_validate_blames_the_first_key() -> None:
    config = config_from_mapping(nested({**OFFLOAD, **SELECTIVE}), enforce=False).config
    with pytest.raises(InvalidConfigError) as caught:
        validate(config)
    assert caught.value.problems[0].where == "offload.cpu_offloading"
    assert "rule R21" in str(caught.value)
    assert "set recompute_granularity to null" in str(caught.value)


def test_validate_passes_warnings() -> None:
    config = config_from_mapping(nested(SELECTIVE)).config
    validate(config)
    assert [finding.rule for finding in check(config)] == ["R18"]


def test_not_modelled_says_so() -> None:
    assert "not modelled yet N-cp" in str(refused({"parallel.context_parallel_size": 2}))
