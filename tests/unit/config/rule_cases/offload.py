"""Offloading: of each rule what breaks it, and what keeps it."""

from __future__ import annotations

from tests.unit.config.rule_cases.settings import (
    AWARE,
    AWARE_OFFLOAD,
    COUPLED,
    FINE,
    FUSER,
    GRAPH,
    GRAPHED,
    HOST_OPTIMIZER,
    LOCAL,
    MODULES,
    MOE,
    OFFLOAD,
    OFFLOADED,
    SELECTIVE,
    TE_VERSION,
    UNIFORM,
    Cases,
)

CASES: Cases = {
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
    "O5": ([{**OFFLOAD, "offload.cpu_offloading_weights": True}, {"offload.cpu_offloading_weights": True}], [OFFLOAD]),
    "O6": (
        [
            {**OFFLOAD, "offload.cpu_offloading_double_buffering": True},
            {"offload.cpu_offloading_double_buffering": True},
        ],
        [OFFLOAD],
    ),
    "O15": (
        [HOST_OPTIMIZER, {**HOST_OPTIMIZER, "precision.bf16": False, "precision.fp16": True}],
        [
            {**HOST_OPTIMIZER, "optimizer.use_distributed_optimizer": True},
            {**HOST_OPTIMIZER, "precision.bf16": False},
            {"optimizer.optimizer_offload_fraction": 0.5},
        ],
    ),
    "O16": ([OFFLOAD], [{**OFFLOAD, "data.micro_batch_size": 16}, {"offload.cpu_offloading": True}, {}]),
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
    "O14": (
        [{"optimizer.optimizer_cpu_offload": True, "optimizer.optimizer_offload_fraction": 0.5}],
        [
            {"optimizer.optimizer_cpu_offload": True},
            {
                "optimizer.optimizer_cpu_offload": True,
                "optimizer.optimizer_offload_fraction": 0.5,
                "optimizer.use_precision_aware_optimizer": True,
            },
        ],
    ),
    "O18": (
        [
            {**AWARE_OFFLOAD, "optimizer.optimizer_offload_fraction": 0.5},
            {**AWARE_OFFLOAD, "optimizer.optimizer_offload_fraction": 1.0, "optimizer.exp_avg_dtype": "bf16"},
        ],
        [
            {**AWARE_OFFLOAD, "optimizer.optimizer_offload_fraction": 1.0},
            {**AWARE_OFFLOAD, "optimizer.optimizer_cpu_offload": False},
        ],
    ),
    "O17": (
        [
            {**HOST_OPTIMIZER, **AWARE, axis: 2}
            for axis in ("parallel.data_parallel_size", "parallel.context_parallel_size")
        ],
        [
            {**HOST_OPTIMIZER, **AWARE},
            {**HOST_OPTIMIZER, **AWARE, "optimizer.optimizer_offload_fraction": 1.0, "parallel.data_parallel_size": 2},
            {**HOST_OPTIMIZER, "parallel.data_parallel_size": 2},
            {**AWARE, "parallel.data_parallel_size": 2},
        ],
    ),
    "O13": (
        [{"optimizer.optimizer_cpu_offload": True, **COUPLED}],
        [{"optimizer.optimizer_cpu_offload": True}, COUPLED],
    ),
    "F1": ([{"offload.fine_grained_activation_offloading": True}], [FINE, {}]),
    "F2": (
        [{**FINE, OFFLOADED: ["attn_proj"]}],
        [{**FINE, OFFLOADED: ["attn_proj", "core_attn"]}, {OFFLOADED: ["attn_proj"]}],
    ),
    "F3": (
        [{**FINE, OFFLOADED: ["gdp_qkv"], **SELECTIVE, MODULES: ["gdp_in_proj"]}],
        [{**FINE, OFFLOADED: ["gdp_qkv"]}, {**FINE, **SELECTIVE, MODULES: ["gdp_in_proj"]}],
    ),
    "F4": (
        [{**FINE, OFFLOADED: ["moe_act"], **SELECTIVE, MODULES: ["moe"], **MOE}],
        [{**FINE, OFFLOADED: ["moe_act"], **MOE}, {**FINE, **SELECTIVE, MODULES: ["moe"], **MOE}],
    ),
    "F5": (
        [{**FINE, "offload.delta_offload_bytes_across_pp_ranks": -1}],
        [FINE, {"offload.delta_offload_bytes_across_pp_ranks": -1}],
    ),
    "F6": (
        [{**FINE, OFFLOADED: ["fused_group_mlp"]}, {**FINE, OFFLOADED: ["fused_group_mlp", "moe_act"], **FUSER}],
        [{**FINE, OFFLOADED: ["fused_group_mlp"], **FUSER}, {**FINE, OFFLOADED: ["moe_act"]}],
    ),
    "F7": ([{**FINE, **LOCAL}], [FINE, LOCAL]),
    "F8": (
        [{**FINE, TE_VERSION: "2.10.0"}],
        [{**FINE, TE_VERSION: "2.9.1"}, {**FINE, TE_VERSION: "2.10", "offload.nvte_cpu_offload_v1": True}, FINE],
    ),
    "F13": (
        [
            {**OFFLOAD, "model.moe_paged_stash": True},
            {**FINE, OFFLOADED: ["moe_act"], "model.moe_paged_stash": True},
        ],
        [{"model.moe_paged_stash": True}, {**FINE, "model.moe_paged_stash": True}],
    ),
    "F14": (
        [
            {OFFLOADED: ["core_attn"]},
            {"offload.activation_offload_fraction": 0.5},
            {"offload.min_offloaded_tensor_size": 100},
        ],
        [FINE, {}],
    ),
    "F17": (
        [FINE, {**FINE, **MOE, OFFLOADED: ["moe_act"]}, {**FINE, "offload.min_offloaded_tensor_size": 10**8}],
        [
            {**FINE, "offload.min_offloaded_tensor_size": 100},
            {**FINE, "data.micro_batch_size": 64},
            {"offload.min_offloaded_tensor_size": 10**8},
        ],
    ),
    "F16": (
        [{**FINE, OFFLOADED: ["attn_norm"]}, {**MOE, **FINE, OFFLOADED: ["moe_act"], "model.moe_grouped_gemm": False}],
        [FINE, {**MOE, **FINE, OFFLOADED: ["mlp_norm", "moe_act"], "model.moe_grouped_gemm": True}],
    ),
    "F15": ([{**FINE, "offload.activation_offload_fraction": 0.0}], [FINE]),
    "G3": ([{GRAPHED: ["attn"]}], [{**GRAPH, GRAPHED: ["attn"]}, {}]),
    "G5": (
        [{"offload.delay_offload_until_cuda_graph": True}],
        [{**FINE, **GRAPH, "offload.delay_offload_until_cuda_graph": True}],
    ),
}
