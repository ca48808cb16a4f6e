"""Products in fp8: of each rule what breaks it, and what keeps it."""

from __future__ import annotations

from tests.unit.config.rule_cases.settings import (
    AWARE,
    FINE,
    FP8,
    FSDP2,
    LATENT,
    LOCAL,
    MOE,
    OFFLOAD,
    SP2,
    TENSORWISE,
    Cases,
)

ENDS = {"precision.first_last_layers_bf16": True}
START = "precision.num_layers_at_start_in_bf16"
RECIPE = "precision.fp8_recipe"
SHARDED = {"optimizer.use_distributed_optimizer": True}
PARAMS = {**TENSORWISE, **SHARDED, "precision.fp8_param": True}
WGRAD = "precision.fp8_wgrad"

CASES: Cases = {
    "Q1": ([{**FP8, **LOCAL}], [FP8, LOCAL]),
    "Q2": ([{**FP8, **ENDS}], [{**TENSORWISE, **ENDS}, ENDS]),
    "Q3": ([{**TENSORWISE, **ENDS, START: 5}], [{**TENSORWISE, **ENDS, START: 4}, {**TENSORWISE, START: 5}]),
    "Q4": ([{**TENSORWISE, "precision.fp8_param": True}], [PARAMS, TENSORWISE]),
    "Q5": (
        [{**FP8, "model.ffn_hidden_size": 24}, {**FP8, RECIPE: "blockwise", "model.ffn_hidden_size": 64}],
        [{**FP8, "model.ffn_hidden_size": 32}, {"model.ffn_hidden_size": 24}],
    ),
    "Q6": (
        [{**FP8, "data.seq_length": 132}, {**SP2, **FP8, RECIPE: "blockwise"}],
        [FP8, {**FP8, RECIPE: "blockwise"}, {"data.seq_length": 132}],
    ),
    "N-fp8-fp32": ([{**FP8, "precision.bf16": False}], [FP8, {"precision.bf16": False}]),
    "N-fp4": ([{"precision.fp4": "e2m1"}], [{}]),
    "N-fp8-recipe": (
        [{**FP8, RECIPE: "custom"}, {**FP8, WGRAD: False}],
        [TENSORWISE, {RECIPE: "custom"}, {WGRAD: False}],
    ),
    "N-fp8-attention": (
        [{**FP8, "precision.fp8_dot_product_attention": True}, {"precision.fp8_multi_head_attention": True}],
        [FP8],
    ),
    "N-fp8-experts": ([{**FP8, **MOE}], [FP8, MOE]),
    "N-fp8-latent": ([{**FP8, **LATENT}], [FP8, LATENT]),
    "N-fp8-mtp": ([{**FP8, "model.mtp_num_layers": 1}], [FP8, {"model.mtp_num_layers": 1}]),
    "N-fp8-offload": ([{**FP8, **OFFLOAD}, {**FP8, **FINE}], [FP8, OFFLOAD]),
    "N-fp8-fsdp": ([{**FP8, **FSDP2}], [FP8, FSDP2]),
    "N-fp8-param": (
        [{**PARAMS, RECIPE: "mxfp8"}, {**PARAMS, **AWARE}, {**PARAMS, "optimizer.optimizer": "muon"}],
        [PARAMS, {**TENSORWISE, **AWARE}],
    ),
}
