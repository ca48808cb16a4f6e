"""Recomputation: of each rule what breaks it, and what keeps it."""

from __future__ import annotations

from tests.unit.config.rule_cases.settings import (
    BLOCK,
    DISTRIBUTE,
    FINE,
    FP8,
    FULL,
    LOCAL,
    MHC,
    MODULES,
    MOE,
    RECOMPUTED_MHC,
    SELECTIVE,
    SHARED_OVERLAP,
    SP2,
    TE_VERSION,
    TENSORWISE,
    TP2,
    UNIFORM,
    Cases,
)

CASES: Cases = {
    "R1": ([{"recompute.recompute_granularity": "fully"}], [UNIFORM, SELECTIVE, {}]),
    "R2": ([{**UNIFORM, "recompute.recompute_method": "uniformly"}], [UNIFORM, BLOCK, FULL]),
    "R3": ([FULL, {**FULL, "recompute.recompute_num_layers": 1}], [UNIFORM, SELECTIVE]),
    "R4": ([FULL, {**FULL, "recompute.recompute_method": "block"}], [UNIFORM, SELECTIVE]),
    "R5": ([{**SELECTIVE, "recompute.recompute_num_layers": 1}], [SELECTIVE, UNIFORM]),
    "R6": ([{**DISTRIBUTE, **SP2}], [{**DISTRIBUTE, **TP2}, {**UNIFORM, **SP2}]),
    "R7": ([{**SELECTIVE, MODULES: ["mlp", "mpl"]}], [{**SELECTIVE, MODULES: ["mlp"]}, {**SELECTIVE, MODULES: []}]),
    "R8": (
        [{**SELECTIVE, MODULES: ["moe_act"], **MOE}],
        [{**SELECTIVE, MODULES: ["moe_act"], **MOE, "model.moe_grouped_gemm": True}, {**SELECTIVE, **MOE}],
    ),
    "R9": (
        [{**SELECTIVE, MODULES: ["mla_up_proj"]}],
        [
            SELECTIVE,
            {MODULES: ["mla_up_proj"]},
            {**SELECTIVE, MODULES: ["mla_up_proj"], "model.multi_latent_attention": True},
        ],
    ),
    "R18": (
        [SELECTIVE, {**SELECTIVE, MODULES: ["mlp", "core_attn"]}],
        [{**SELECTIVE, "model.attention_backend": "unfused"}, {**SELECTIVE, **LOCAL}, {**SELECTIVE, MODULES: ["mlp"]}],
    ),
    "R19": ([{**SELECTIVE, "recompute.recompute_method": "block"}], [SELECTIVE, BLOCK]),
    "R20a": (
        [DISTRIBUTE],
        [{**DISTRIBUTE, **TP2}, UNIFORM, {**SELECTIVE, "recompute.distribute_saved_activations": True}],
    ),
    "R20b": (
        [
            {"recompute.distribute_saved_activations": True},
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
    "R27a": (
        [{**SELECTIVE, MODULES: ["mlp"], **MOE}],
        [{**SELECTIVE, MODULES: ["mlp"]}, {**SELECTIVE, MODULES: ["mlp"], **MOE, "model.moe_layer_freq": 2}],
    ),
    "R27b": (
        [{**SELECTIVE, MODULES: ["moe", "moe_act"]}],
        [{**SELECTIVE, MODULES: ["moe"], **MOE}, {MODULES: ["moe"]}],
    ),
    "R27c": (
        [{**SELECTIVE, MODULES: ["shared_experts"], **MOE}],
        [
            {**SELECTIVE, MODULES: ["shared_experts"], **MOE, "model.moe_shared_expert_intermediate_size": 64},
            {**SELECTIVE, MODULES: ["shared_experts"]},
        ],
    ),
    "R27d": (
        [{**SELECTIVE, MODULES: ["moe", "moe_act"], **MOE}, {**SELECTIVE, MODULES: ["moe", "shared_experts"], **MOE}],
        [{**SELECTIVE, MODULES: ["moe"], **MOE}, {**SELECTIVE, MODULES: ["moe_act", "shared_experts"], **MOE}],
    ),
    "R28": ([{MODULES: ["mlp"]}, {**UNIFORM, MODULES: ["mlp"]}], [{**SELECTIVE, MODULES: ["mlp"]}, UNIFORM]),
    "R29": (
        [{"recompute.recompute_method": "block"}, {"recompute.recompute_num_layers": 2}],
        [{}, UNIFORM, {**SELECTIVE, "recompute.recompute_method": "block"}],
    ),
    "R10": (
        [{**SELECTIVE, MODULES: ["gdn_norm_out"]}],
        [{**SELECTIVE, MODULES: ["gdn_norm_out"], "model.experimental_attention_variant": "gdn2"}],
    ),
    "R11": (
        [{**SELECTIVE, MODULES: ["shared_experts"], **SHARED_OVERLAP}],
        [
            {**SELECTIVE, MODULES: ["shared_experts"]},
            {**SELECTIVE, **SHARED_OVERLAP},
            {**SELECTIVE, MODULES: ["shared_experts"], **MOE, "model.moe_shared_expert_overlap": True},
        ],
    ),
    "R12": (
        [{**SELECTIVE, MODULES: ["layernorm"], **FP8}, {**SELECTIVE, MODULES: ["moe_act"], **FP8}],
        [{**SELECTIVE, MODULES: ["mlp"], **FP8}, {**SELECTIVE, MODULES: ["layernorm"], **TENSORWISE}],
    ),
    "R13": (
        [{**SELECTIVE, MODULES: ["layernorm"], **TENSORWISE, TE_VERSION: "2.5.1"}],
        [
            {**SELECTIVE, MODULES: ["layernorm"], **TENSORWISE, TE_VERSION: "2.6.0"},
            {**SELECTIVE, MODULES: ["layernorm"], **TENSORWISE},
            {**SELECTIVE, MODULES: ["layernorm"], TE_VERSION: "2.5.1"},
        ],
    ),
    "R14a": (
        [{**UNIFORM, "recompute.moe_layer_recompute": True}],
        [{"recompute.moe_layer_recompute": True}, {**SELECTIVE, "recompute.moe_layer_recompute": True}, UNIFORM],
    ),
    "R14b": (
        [{"recompute.moe_layer_recompute": True}, {**SELECTIVE, "recompute.moe_layer_recompute": True}],
        [{**UNIFORM, "recompute.moe_layer_recompute": True}, {**SELECTIVE, MODULES: ["moe"], **MOE}],
    ),
    "R15a": ([{**SELECTIVE, MODULES: ["mhc"]}], [{**SELECTIVE, MODULES: ["mhc"], **MHC}, MHC]),
    "R15b": ([{**SELECTIVE, MODULES: ["mhc", "mlp"], **MHC}], [{**SELECTIVE, MODULES: ["mhc"], **MHC}]),
    "R15c": (
        [{**RECOMPUTED_MHC, "recompute.mhc_recompute_layer_num": -1}],
        [{**RECOMPUTED_MHC, "recompute.mhc_recompute_layer_num": 1}, RECOMPUTED_MHC],
    ),
    "R15d": ([{**RECOMPUTED_MHC, **FINE}], [RECOMPUTED_MHC, FINE]),
    "R15e": ([{**MHC, "parallel.pipeline_model_parallel_size": 2}], [MHC]),
    "R16": ([{**MHC, **UNIFORM}], [{**MHC, **SELECTIVE}, UNIFORM]),
    "R30": ([{"recompute.num_microbatches_with_partial_activation_checkpoints": 2}], [BLOCK]),
    "R31": (
        [{"recompute.mhc_recompute_layer_num": 2}],
        [{**RECOMPUTED_MHC, "recompute.mhc_recompute_layer_num": 2}, {}],
    ),
}
