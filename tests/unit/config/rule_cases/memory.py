"""Recomputation, offloading, the optimizer, the run, what is not modelled: what breaks each rule, and what keeps it."""

from __future__ import annotations

from tests.unit.config.rule_cases.settings import (
    AWARE,
    AWARE_OFFLOAD,
    BLOCK,
    COUPLED,
    DISTRIBUTE,
    EP_OVERLAP,
    FINE,
    FP8,
    FSDP2,
    FULL,
    FUSER,
    GRAPH,
    HOST_OPTIMIZER,
    LOCAL,
    MFSDP,
    MHC,
    MODULES,
    MOE,
    OFFLOAD,
    OFFLOADED,
    PP2,
    SELECTIVE,
    SHARED_OVERLAP,
    SHARED_WIDTH,
    SP2,
    TE_VERSION,
    TENSORWISE,
    TP2,
    UNIFORM,
    WHOLE_GRAPH,
    Cases,
)

MUON = {"optimizer.optimizer": "muon"}

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
    "O15": (
        [HOST_OPTIMIZER, {**HOST_OPTIMIZER, "precision.bf16": False, "precision.fp16": True}],
        [
            {**HOST_OPTIMIZER, "optimizer.use_distributed_optimizer": True},
            {**HOST_OPTIMIZER, "precision.bf16": False},
            {"optimizer.optimizer_offload_fraction": 0.5},
        ],
    ),
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
    "F4": (
        [{**FINE, OFFLOADED: ["moe_act"], **SELECTIVE, MODULES: ["moe"], **MOE}],
        [{**FINE, OFFLOADED: ["moe_act"], **MOE}, {**FINE, **SELECTIVE, MODULES: ["moe"], **MOE}],
    ),
    "F7": ([{**FINE, **LOCAL}], [FINE, LOCAL]),
    "F8": (
        [{**FINE, TE_VERSION: "2.10.0"}],
        [{**FINE, TE_VERSION: "2.9.1"}, {**FINE, TE_VERSION: "2.10", "offload.nvte_cpu_offload_v1": True}, FINE],
    ),
    "F14": (
        [
            {OFFLOADED: ["core_attn"]},
            {"offload.activation_offload_fraction": 0.5},
            {"offload.min_offloaded_tensor_size": 100},
        ],
        [FINE, {}],
    ),
    "F16": (
        [{**FINE, OFFLOADED: ["attn_norm"]}, {**MOE, **FINE, OFFLOADED: ["moe_act"], "model.moe_grouped_gemm": False}],
        [FINE, {**MOE, **FINE, OFFLOADED: ["mlp_norm", "moe_act"], "model.moe_grouped_gemm": True}],
    ),
    "F15": ([{**FINE, "offload.activation_offload_fraction": 0.0}], [FINE]),
    "O5": (
        [{**OFFLOAD, "offload.cpu_offloading_weights": True}, {"offload.cpu_offloading_double_buffering": True}],
        [OFFLOAD],
    ),
    "R3": ([FULL, {**FULL, "recompute.recompute_num_layers": 1}], [UNIFORM, SELECTIVE]),
    "R4": ([FULL, {**FULL, "recompute.recompute_method": "block"}], [UNIFORM, SELECTIVE]),
    "R5": ([{**SELECTIVE, "recompute.recompute_num_layers": 1}], [SELECTIVE, UNIFORM]),
    "R6": ([{**DISTRIBUTE, **SP2}], [{**DISTRIBUTE, **TP2}, {**UNIFORM, **SP2}]),
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
    "R25": (
        [
            {**UNIFORM, "recompute.recompute_num_layers": 5},
            {**BLOCK, "recompute.recompute_num_layers": 3, "parallel.pipeline_model_parallel_size": 2},
        ],
        [{**UNIFORM, "recompute.recompute_num_layers": 4}],
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
    "R30": ([{"recompute.num_microbatches_with_partial_activation_checkpoints": 2}], [BLOCK]),
    "R27": (
        [
            {**SELECTIVE, MODULES: ["mlp"], **MOE},
            {**SELECTIVE, MODULES: ["moe", "moe_act"]},
            {**SELECTIVE, MODULES: ["layernorm"]},
            {**SELECTIVE, MODULES: ["shared_experts"], **MOE},
        ],
        [
            {**SELECTIVE, MODULES: ["mlp"]},
            {**SELECTIVE, MODULES: ["mlp"], **MOE, "model.moe_layer_freq": 2},
            {**SELECTIVE, MODULES: ["moe"], **MOE},
            {MODULES: ["moe"]},
            {**SELECTIVE, MODULES: ["layernorm"], **LOCAL},
            {**SELECTIVE, MODULES: ["layernorm"], **MOE},
            {**SELECTIVE, MODULES: ["shared_experts"], **MOE, SHARED_WIDTH: 64},
        ],
    ),
    "T1": ([{**AWARE, "optimizer.optimizer": "sgd"}], [AWARE, {"optimizer.optimizer": "sgd"}]),
    "T2": (
        [{"optimizer.use_precision_aware_optimizer": True}],
        [AWARE, {"optimizer.use_distributed_optimizer": True}],
    ),
    "T3": ([{"optimizer.exp_avg_dtype": "bf16"}], [{**AWARE, "optimizer.exp_avg_dtype": "bf16"}]),
    "T4": (
        [{**AWARE, "optimizer.main_grads_dtype": "bf16"}],
        [{**AWARE, "optimizer.main_grads_dtype": "bf16", "precision.grad_reduce_in_fp32": False}, AWARE],
    ),
    "T5": ([{"optimizer.min_loss_scale": 2.0, "optimizer.initial_loss_scale": 1.0}], [{}]),
    "U1": (
        [{**MUON, "precision.fp16": True, "precision.bf16": False}],
        [{**MUON, "precision.bf16": False}, {"precision.fp16": True, "precision.bf16": False}],
    ),
    "U2": ([{**MUON, "parallel.use_torch_fsdp2": True}], [MUON, {**MUON, **PP2}]),
    "N-layer-wise": ([{**MUON, "optimizer.use_distributed_optimizer": True}], [MUON]),
    "N-muon-distributed": (
        [{**MUON, **TP2, "optimizer.muon_tp_mode": "distributed"}],
        [{**MUON, "optimizer.muon_tp_mode": "distributed"}, {**MUON, **TP2, "optimizer.muon_tp_mode": "blockwise"}],
    ),
    "N-narrow-states": (
        [{**AWARE, "optimizer.exp_avg_sq_dtype": "fp8"}, {**AWARE, "optimizer.main_params_dtype": "fp16"}],
        [{**AWARE, "optimizer.exp_avg_sq_dtype": "fp16"}],
    ),
    "N-shared-groups": (
        [{"model.num_query_groups": 1, **TP2}],
        [{"model.num_query_groups": 2, **TP2}, {"model.num_query_groups": 1}],
    ),
    "N-optimizer-offload": (
        [{**HOST_OPTIMIZER, "optimizer.optimizer": "sgd"}],
        [HOST_OPTIMIZER, {"optimizer.optimizer_cpu_offload": True, "optimizer.optimizer": "sgd"}],
    ),
    "N-cuda-graph": ([GRAPH, WHOLE_GRAPH, {"cuda_graph.cuda_graph_scope": ["attn"]}], [{}]),
    "N-ep-overlap": ([EP_OVERLAP, SHARED_OVERLAP], [{}]),
    "N-fsdp-experts": (
        [{**FSDP2, **MOE, "parallel.tensor_model_parallel_size": 2, "parallel.expert_tensor_parallel_size": 1}],
        [{**FSDP2, **MOE}, {**FSDP2, "parallel.expert_tensor_parallel_size": 2}],
    ),
    "N-fsdp-alone": (
        [FSDP2],
        [{**FSDP2, "parallel.data_parallel_size": 2}, {**FSDP2, "parallel.context_parallel_size": 2}],
    ),
    "N-offload-v1": (
        [{**OFFLOAD, "offload.nvte_cpu_offload_v1": True}],
        [{"offload.nvte_cpu_offload_v1": True}, OFFLOAD],
    ),
    "N-offload-delta": (
        [{**FINE, "offload.delta_offload_bytes_across_pp_ranks": 1}],
        [FINE, {"offload.delta_offload_bytes_across_pp_ranks": 1}],
    ),
    "N-coupled-decay": ([COUPLED], [{}]),
    "N-jitter": (
        [{**MOE, "model.moe_input_jitter_eps": 0.1}],
        [{"model.moe_input_jitter_eps": 0.1}, MOE],
    ),
    "N-variant": (
        [
            {"model.experimental_attention_variant": "gdn"},
            MHC,
            {**SELECTIVE, MODULES: ["gdp_in_proj"]},
            {OFFLOADED: ["gdp_qkv"]},
            {**SELECTIVE, MODULES: ["mhc"]},
        ],
        [SELECTIVE, FINE, {}],
    ),
    "N-op-fuser": (
        [FUSER, {"model.moe_paged_stash": True}, {OFFLOADED: ["fused_group_mlp"]}],
        [{}, {OFFLOADED: ["moe_act"]}],
    ),
    "N-mfsdp": (
        [
            {**MFSDP, **PP2},
            {**MFSDP, "precision.gradient_accumulation_fusion": True},
            {**MFSDP, "parallel.data_parallel_size": 4, "optimizer.num_distributed_optimizer_instances": 2},
            {**MFSDP, "parallel.fsdp_double_buffer": True},
            {**MFSDP, "parallel.megatron_fsdp_main_params_dtype": "bf16"},
            {**MFSDP, "optimizer.optimizer_cpu_offload": True},
            {**MFSDP, "optimizer.use_precision_aware_optimizer": True},
        ],
        [MFSDP, FSDP2, PP2, {"parallel.fsdp_double_buffer": True}],
    ),
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
