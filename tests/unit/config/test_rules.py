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
AWARE = {"optimizer.use_precision_aware_optimizer": True, "optimizer.use_distributed_optimizer": True}
PP2 = {"parallel.pipeline_model_parallel_size": 2}
VPP = "parallel.virtual_pipeline_model_parallel_size"
VPP2 = {**PP2, VPP: 2}
GROUP = "parallel.microbatch_group_size_per_vp_stage"
SP2 = {**TP2, "parallel.sequence_parallel": True}
MOE = {"model.num_moe_experts": 8, "model.add_bias_linear": False}
LOCAL = {"model.transformer_impl": "local"}
CP2 = {"parallel.context_parallel_size": 2}
LATENT = {"model.multi_latent_attention": True}
A2A = "parallel.cp_comm_type"
BALANCING = "model.moe_router_load_balancing_type"
CAPACITY_FACTOR = "model.moe_expert_capacity_factor"
SIGMOID = {"model.moe_router_score_function": "sigmoid"}
EXPERT_BIAS = "model.moe_router_enable_expert_bias"
GROUPS = "model.moe_router_num_groups"
BEST_GROUPS = "model.moe_router_group_topk"
DROP_POLICY = "model.moe_token_drop_policy"
SHARED_WIDTH = "model.moe_shared_expert_intermediate_size"

FP8 = {"precision.fp8": "hybrid"}
TENSORWISE = {**FP8, "precision.fp8_recipe": "tensorwise"}
TE_VERSION = "model.transformer_engine_version"
COUPLED = {"optimizer.decoupled_weight_decay": False}
MHC = {"model.enable_mhc_connections": True}
RECOMPUTED_MHC = {**MHC, **SELECTIVE, MODULES: ["mhc"]}
SHARED_OVERLAP = {**MOE, "model.moe_shared_expert_overlap": True, "model.moe_shared_expert_intermediate_size": 64}
OFFLOADED = "offload.offload_modules"
FINE = {"offload.fine_grained_activation_offloading": True, OFFLOADED: ["core_attn"]}
AWARE_OFFLOAD = {
    "optimizer.optimizer_cpu_offload": True,
    "optimizer.use_precision_aware_optimizer": True,
    "optimizer.use_distributed_optimizer": True,
}
INFLIGHT = "offload.fine_grained_offloading_max_inflight_offloads"
HOST_OPTIMIZER = {"optimizer.optimizer_cpu_offload": True, "optimizer.optimizer_offload_fraction": 0.5}
FUSER = {"model.use_transformer_engine_op_fuser": True}
GRAPHED = "cuda_graph.cuda_graph_modules"
GRAPH = {"cuda_graph.cuda_graph_impl": "transformer_engine"}
LOCAL_GRAPH = {"cuda_graph.cuda_graph_impl": "local"}
WHOLE_GRAPH = {"cuda_graph.cuda_graph_impl": "full_iteration"}
EP_OVERLAP = {
    **MOE,
    "parallel.overlap_moe_expert_parallel_comm": True,
    "parallel.expert_model_parallel_size": 2,
    "model.moe_token_dispatcher_type": "alltoall",
}
DROPPING = {"model.moe_expert_capacity_factor": 1.0, "model.moe_token_dispatcher_type": "alltoall"}
PADDED = {**DROPPING, "model.moe_pad_expert_input_to_capacity": True}
NO_OVERLAP = {
    "parallel.pipeline_model_parallel_size": 4,
    "parallel.virtual_pipeline_model_parallel_size": 2,
    "parallel.overlap_p2p_comm": False,
}
FSDP2 = {"parallel.use_torch_fsdp2": True, "model.share_embeddings_and_output_weights": False}

FUSED_LOSS = {"model.cross_entropy_loss_fusion": True}
IMPL = "model.cross_entropy_fusion_impl"

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
    "P6": (
        [{"parallel.pipeline_model_parallel_size": 3}, {**PP2, "parallel.virtual_pipeline_model_parallel_size": 3}],
        [{"parallel.pipeline_model_parallel_size": 4}, {**PP2, "parallel.num_layers_in_first_pipeline_stage": 1}],
    ),
    "V1": (
        [{**PP2, "parallel.num_layers_in_last_pipeline_stage": 1, "parallel.account_for_loss_in_pipeline_split": True}],
        [
            {**PP2, "parallel.num_layers_in_last_pipeline_stage": 1},
            {
                **PP2,
                "parallel.account_for_embedding_in_pipeline_split": True,
                "parallel.account_for_loss_in_pipeline_split": True,
            },
        ],
    ),
    "V2": (
        [{**PP2, VPP: 2, "parallel.num_layers_per_virtual_pipeline_stage": 1}],
        [{**VPP2, "data.num_microbatches": 2}, {**PP2, "parallel.num_layers_per_virtual_pipeline_stage": 1}],
    ),
    "V3": (
        [
            {
                **PP2,
                "parallel.num_layers_in_first_pipeline_stage": 2,
                "parallel.num_layers_per_virtual_pipeline_stage": 1,
            }
        ],
        [{**PP2, "parallel.num_layers_in_first_pipeline_stage": 2}],
    ),
    "V4": (
        [{**PP2, "parallel.num_layers_per_virtual_pipeline_stage": 3}],
        [{**PP2, "parallel.num_layers_per_virtual_pipeline_stage": 2}],
    ),
    "V5": (
        [VPP2, {**VPP2, GROUP: 1, "data.num_microbatches": 4}, {**VPP2, GROUP: 5, "data.num_microbatches": 4}],
        [{**VPP2, GROUP: 3, "data.num_microbatches": 3}, PP2],
    ),
    "V6": (
        [{**VPP2, "data.num_microbatches": 3}, {**VPP2, GROUP: 3, "data.num_microbatches": 4}],
        [{**VPP2, "data.num_microbatches": 4}, {**VPP2, GROUP: 3, "data.num_microbatches": 5}],
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
    "N-narrow-states": (
        [{**AWARE, "optimizer.exp_avg_sq_dtype": "fp8"}, {**AWARE, "optimizer.main_params_dtype": "fp16"}],
        [{**AWARE, "optimizer.exp_avg_sq_dtype": "fp16"}],
    ),
    "V8": ([{**NO_OVERLAP, "parallel.pipeline_model_parallel_size": 2}], [NO_OVERLAP]),
    "V9": (
        [{**NO_OVERLAP, "parallel.overlap_p2p_comm": True, "parallel.batch_p2p_comm": True}],
        [{**NO_OVERLAP, "parallel.batch_p2p_comm": True}, {"parallel.batch_p2p_comm": True}],
    ),
    "V10": ([{"parallel.overlap_p2p_comm": True}], [{**NO_OVERLAP, "parallel.overlap_p2p_comm": True}]),
    "V7": ([{**PP2, GROUP: 2}], [{**VPP2, GROUP: 2, "data.num_microbatches": 2}]),
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
        [{"model.attention_backend": kernels, "precision.bf16": False} for kernels in ("flash", "fused")],
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
    "B1": (
        [{"data.global_batch_size": 3, "parallel.data_parallel_size": 2}],
        [{"data.global_batch_size": 4, "parallel.data_parallel_size": 2}, {}],
    ),
    "B2": (
        [{"data.global_batch_size": 4, "data.num_microbatches": 3}],
        [{"data.global_batch_size": 4, "data.num_microbatches": 4}, {"data.num_microbatches": 3}],
    ),
    "A1": (
        [{**CP2, **LOCAL}, {**CP2, "model.attention_backend": "unfused"}],
        [CP2, {"model.attention_backend": "unfused"}],
    ),
    "A2": (
        [{**CP2, A2A: "a2a", "model.num_query_groups": 1}, {**CP2, A2A: "a2a", **SP2, "model.num_query_groups": 2}],
        [{**CP2, A2A: "a2a"}, {**CP2, "model.num_query_groups": 1}, {A2A: "a2a", "model.num_query_groups": 1}],
    ),
    "A3": ([{**CP2, **SP2, "data.seq_length": 130}], [{**CP2, **SP2}, {**SP2, "data.seq_length": 130}]),
    "A4": ([{**LATENT, "model.qk_pos_emb_head_dim": 63}], [LATENT, {"model.qk_pos_emb_head_dim": 63}]),
    "A5": ([{**LATENT, "model.num_query_groups": 2}], [LATENT, {"model.num_query_groups": 2}]),
    "A6": ([{**LATENT, "model.kv_channels": 32}], [LATENT, {"model.kv_channels": 32}]),
    "N-cp-hierarchical": ([{**CP2, A2A: "a2a+p2p"}], [{**CP2, A2A: "all_gather"}, {A2A: "a2a+p2p"}]),
    "N-cp-latent": ([{**CP2, **LATENT}], [CP2, LATENT]),
    "E1": (
        [{**MOE, CAPACITY_FACTOR: 1.0, BALANCING: "sinkhorn"}],
        [{**MOE, CAPACITY_FACTOR: 1.0}, {**MOE, BALANCING: "sinkhorn"}, {CAPACITY_FACTOR: 1.0, BALANCING: "sinkhorn"}],
    ),
    "E2": (
        [{**MOE, "model.moe_pad_expert_input_to_capacity": True}],
        [{**MOE, "model.moe_pad_expert_input_to_capacity": True, CAPACITY_FACTOR: 1.0}, MOE],
    ),
    "E3": (
        [{**MOE, "model.moe_layer_freq": [0, 1]}],
        [{**MOE, "model.moe_layer_freq": [0, 1, 1, 1]}, {**MOE, "model.moe_layer_freq": 2}],
    ),
    "E4": (
        [{**MOE, **SP2, "model.moe_ffn_hidden_size": 33}],
        [{**MOE, **SP2, "model.moe_ffn_hidden_size": 33, "parallel.expert_tensor_parallel_size": 1}, {**MOE, **SP2}],
    ),
    "E5": ([{**MOE, **SP2, SHARED_WIDTH: 33}], [{**MOE, **SP2, SHARED_WIDTH: 32}, {**MOE, SHARED_WIDTH: 33}]),
    "E6": (
        [{**MOE, "model.moe_router_topk": 1}],
        [
            {**MOE, "model.moe_router_topk": 1, "model.moe_router_pre_softmax": True},
            {**MOE, "model.moe_router_topk": 1, BALANCING: "sinkhorn"},
            {**MOE, "model.moe_router_topk": 1, **SIGMOID},
            MOE,
            {"model.moe_router_topk": 1},
        ],
    ),
    "E7": (
        [{**MOE, "model.moe_aux_loss_coeff": 0.1, BALANCING: "none"}],
        [
            {**MOE, "model.moe_aux_loss_coeff": 0.1},
            {**MOE, "model.moe_aux_loss_coeff": 0.1, BALANCING: "seq_aux_loss"},
            {**MOE, BALANCING: "none"},
        ],
    ),
    "E8": ([{"model.moe_grouped_gemm": True}, {CAPACITY_FACTOR: 1.0}], [{**MOE, "model.moe_grouped_gemm": True}, {}]),
    "E9": (
        [{**MOE, EXPERT_BIAS: True}, {EXPERT_BIAS: True}],
        [{**MOE, **SIGMOID, EXPERT_BIAS: True}, {**MOE, **SIGMOID}],
    ),
    "E10": ([{**MOE, BEST_GROUPS: 1}], [{**MOE, BEST_GROUPS: 1, GROUPS: 4}, {BEST_GROUPS: 1}]),
    "E11": (
        [{**MOE, BEST_GROUPS: 1, GROUPS: 3}, {**MOE, BEST_GROUPS: 5, GROUPS: 4}],
        [{**MOE, BEST_GROUPS: 4, GROUPS: 4}, {**MOE, GROUPS: 3}, {BEST_GROUPS: 1, GROUPS: 3}],
    ),
    "E12": (
        [{**MOE, BEST_GROUPS: 1, GROUPS: 8}, {**MOE, BEST_GROUPS: 2, GROUPS: 4, "model.moe_router_topk": 5}],
        [{**MOE, BEST_GROUPS: 1, GROUPS: 4}, {**MOE, BEST_GROUPS: 2, GROUPS: 4, "model.moe_router_topk": 4}],
    ),
    "E13": (
        [{**MOE, BALANCING: "sinkhorn", "model.moe_aux_loss_coeff": 0.1}],
        [{**MOE, BALANCING: "sinkhorn"}, {BALANCING: "sinkhorn", "model.moe_aux_loss_coeff": 0.1}],
    ),
    "E14": (
        [{**MOE, BALANCING: "sinkhorn", **SIGMOID}, {**MOE, BALANCING: "sinkhorn", BEST_GROUPS: 1, GROUPS: 4}],
        [{**MOE, BALANCING: "sinkhorn"}, {**MOE, **SIGMOID}, {BALANCING: "sinkhorn", **SIGMOID}],
    ),
    "E15": ([{**MOE, GROUPS: 4}], [{**MOE, GROUPS: 4, BEST_GROUPS: 1}, {GROUPS: 4}]),
    "E16": (
        [{**MOE, **SIGMOID, "model.moe_router_pre_softmax": True}],
        [{**MOE, **SIGMOID}, {**MOE, "model.moe_router_pre_softmax": True}],
    ),
    "E17": (
        [{**MOE, DROP_POLICY: "position"}],
        [{**MOE, DROP_POLICY: "position", CAPACITY_FACTOR: 1.0}, MOE, {DROP_POLICY: "position"}],
    ),
    "N-dispatcher": (
        [{**MOE, "model.moe_token_dispatcher_type": "flex"}],
        [{**MOE, "model.moe_token_dispatcher_type": "alltoall"}, {"model.moe_token_dispatcher_type": "flex"}],
    ),
    "N-shared-groups": (
        [{"model.num_query_groups": 1, **TP2}],
        [{"model.num_query_groups": 2, **TP2}, {"model.num_query_groups": 1}],
    ),
    "N-expert-bias": ([{**MOE, "model.add_bias_linear": True}], [MOE, {"model.add_bias_linear": True}]),
    "N-optimizer-offload": (
        [{**HOST_OPTIMIZER, "optimizer.optimizer": "sgd"}],
        [HOST_OPTIMIZER, {"optimizer.optimizer_cpu_offload": True, "optimizer.optimizer": "sgd"}],
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
    "P12": (
        [{"parallel.context_parallel_size": 3}],
        [{"parallel.context_parallel_size": 2}, {"data.seq_length": 127}],
    ),
    "P13": (
        [{"parallel.virtual_pipeline_model_parallel_size": 2}],
        [{"parallel.virtual_pipeline_model_parallel_size": 2, "parallel.pipeline_model_parallel_size": 2}],
    ),
    "M10": ([{"precision.fp8_param": True}], [{"precision.fp8_param": True, **FP8}, FP8]),
    "M11": ([{"precision.fp4": "e2m1", **FP8}], [{"precision.fp4": "e2m1"}, FP8]),
    "M13": ([{**FUSED_LOSS, IMPL: "te"}], [FUSED_LOSS, {IMPL: "te"}]),
    "M12": ([{**MHC, "model.mtp_num_layers": 1}], [MHC, {"model.mtp_num_layers": 1}]),
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
    "G1": ([{"cuda_graph.cuda_graph_scope": ["attn"]}], [GRAPH]),
    "G2": (
        [{**WHOLE_GRAPH, GRAPHED: ["attn"]}],
        [{**GRAPH, GRAPHED: ["attn"]}, WHOLE_GRAPH],
    ),
    "G3": ([{GRAPHED: ["attn"]}], [{**GRAPH, GRAPHED: ["attn"]}, {}]),
    "R22a": ([{**GRAPH, **OFFLOAD}, {**LOCAL_GRAPH, **OFFLOAD}], [{**WHOLE_GRAPH, **OFFLOAD}, OFFLOAD]),
    "R22b": (
        [{**MOE, **GRAPH, GRAPHED: ["moe", "moe_router"]}],
        [{**MOE, **GRAPH, GRAPHED: ["moe_router"]}, {**MOE, GRAPHED: ["moe", "moe_router"]}],
    ),
    "R22c": (
        [{**MOE, **GRAPH, GRAPHED: ["moe_preprocess"]}],
        [
            {**MOE, **GRAPH, GRAPHED: ["moe_preprocess", "moe_router"]},
            {**MOE, **LOCAL_GRAPH, GRAPHED: ["moe_preprocess"]},
        ],
    ),
    "R22d": (
        [{**GRAPH, GRAPHED: ["moe"]}, {**GRAPH, GRAPHED: ["moe_router"]}],
        [{**MOE, **GRAPH, GRAPHED: ["moe_router"]}, {**GRAPH, GRAPHED: ["mlp"]}],
    ),
    "R22e": (
        [
            {**MOE, **GRAPH, GRAPHED: ["mlp"]},
            {**MOE, **GRAPH, GRAPHED: ["mlp"], "model.moe_layer_freq": [1, 1, 1, 1]},
        ],
        [
            {**GRAPH, GRAPHED: ["mlp"]},
            {**MOE, **GRAPH},
            {**MOE, **GRAPH, GRAPHED: ["mlp"], "model.moe_layer_freq": [0, 1, 1, 1]},
        ],
    ),
    "R22f": (
        [{**MOE, **GRAPH, GRAPHED: ["moe"]}, {**MOE, **DROPPING, **GRAPH, GRAPHED: ["moe"]}],
        [{**MOE, **GRAPH, GRAPHED: ["moe_router"]}, {**MOE, **PADDED, **GRAPH, GRAPHED: ["moe"]}],
    ),
    "R22l": (
        [{**MOE, **DROPPING, **GRAPH, GRAPHED: ["moe_router", "moe_preprocess"]}],
        [
            {**MOE, **PADDED, **GRAPH, GRAPHED: ["moe_router", "moe_preprocess"]},
            {**MOE, **GRAPH, GRAPHED: ["moe_router", "moe_preprocess"]},
        ],
    ),
    "S13": ([{**EP_OVERLAP, "model.moe_token_dispatcher_type": "allgather"}], [EP_OVERLAP]),
    "S14": (
        [{**EP_OVERLAP, "model.moe_shared_expert_overlap": True}, {**EP_OVERLAP, "precision.bf16": False}],
        [EP_OVERLAP, {"precision.bf16": False}],
    ),
    "R22g": ([{**GRAPH, **UNIFORM}, {**LOCAL_GRAPH, **UNIFORM}], [{**WHOLE_GRAPH, **UNIFORM}, {**GRAPH, **SELECTIVE}]),
    "R22h": (
        [{**MOE, **GRAPH, GRAPHED: ["moe_router"], **SELECTIVE, MODULES: ["moe"]}],
        [
            {**MOE, **LOCAL_GRAPH, GRAPHED: ["moe_router"], **SELECTIVE, MODULES: ["moe"]},
            {**MOE, **GRAPH, GRAPHED: ["moe_router"], **SELECTIVE},
        ],
    ),
    "R22i": (
        [
            {**GRAPH, **SELECTIVE, "model.attention_dropout": 0.1},
            {**WHOLE_GRAPH, **SELECTIVE, "model.attention_dropout": 0.1},
        ],
        [{**GRAPH, **SELECTIVE}, {**GRAPH, GRAPHED: ["mlp"], **SELECTIVE, "model.attention_dropout": 0.1}],
    ),
    "R22j": (
        [{**GRAPH, GRAPHED: ["mlp"], **SELECTIVE, MODULES: ["mlp"]}],
        [
            {**GRAPH, GRAPHED: ["attn"], **SELECTIVE, MODULES: ["mlp"]},
            {**GRAPH, GRAPHED: ["mlp"], **SELECTIVE, MODULES: ["mlp"], "model.hidden_dropout": 0.0},
        ],
    ),
    "R22k": (
        [{**MOE, **GRAPH, **SELECTIVE, MODULES: ["moe"], "model.moe_input_jitter_eps": 0.1}],
        [
            {**MOE, **GRAPH, **SELECTIVE, MODULES: ["moe"]},
            {**MOE, **GRAPH, GRAPHED: ["attn"], **SELECTIVE, MODULES: ["moe"], "model.moe_input_jitter_eps": 0.1},
        ],
    ),
    "F9": (
        [{**FINE, **LOCAL_GRAPH, GRAPHED: ["attn"]}, {**FINE, **LOCAL_GRAPH, OFFLOADED: ["moe_act"]}],
        [{**FINE, **LOCAL_GRAPH, OFFLOADED: ["moe_act"], GRAPHED: ["attn"]}, {**FINE, **GRAPH}],
    ),
    "F10": ([{**FINE, **MOE, **GRAPH, GRAPHED: ["moe"]}], [{**FINE, **MOE, **GRAPH, GRAPHED: ["attn"]}]),
    "F11": (
        [{**FINE, **GRAPH, "cuda_graph.cuda_graph_warmup_steps": 0}],
        [{**FINE, **GRAPH}, {**GRAPH, "cuda_graph.cuda_graph_warmup_steps": 0}],
    ),
    "F12": (
        [{**FINE, **WHOLE_GRAPH}, {**FINE, **WHOLE_GRAPH, INFLIGHT: -1}],
        [{**FINE, **WHOLE_GRAPH, INFLIGHT: 0}, {**FINE, **GRAPH}],
    ),
    "G4": (
        [{**GRAPH, "allocator.conf": "expandable_segments:True"}],
        [
            {**GRAPH, "allocator.conf": "expandable_segments:True", "cuda_graph.nccl_graph_register": False},
            {**LOCAL_GRAPH, "allocator.conf": "expandable_segments:True"},
        ],
    ),
    "G5": (
        [{"offload.delay_offload_until_cuda_graph": True}],
        [{**FINE, **GRAPH, "offload.delay_offload_until_cuda_graph": True}],
    ),
    "R17": (
        [
            {**EP_OVERLAP, **UNIFORM},
            {**EP_OVERLAP, **SELECTIVE, MODULES: ["moe"]},
            {**EP_OVERLAP, **SELECTIVE, "recompute.recompute_method": "block"},
            {**EP_OVERLAP, "recompute.recompute_num_layers": 1},
        ],
        [{**EP_OVERLAP, **SELECTIVE}, EP_OVERLAP, UNIFORM],
    ),
    "S1": ([{"parallel.overlap_moe_expert_parallel_comm": True}], [EP_OVERLAP]),
    "S2": (
        [{**EP_OVERLAP, "parallel.pipeline_model_parallel_size": 2}],
        [
            {
                **EP_OVERLAP,
                "parallel.pipeline_model_parallel_size": 2,
                "parallel.virtual_pipeline_model_parallel_size": 2,
            },
            EP_OVERLAP,
        ],
    ),
    "S3": (
        [{"optimizer.overlap_param_gather": True}],
        [{"optimizer.overlap_param_gather": True, "optimizer.use_distributed_optimizer": True}],
    ),
    "S4": (
        [{"optimizer.overlap_param_gather": True}],
        [{"optimizer.overlap_param_gather": True, "optimizer.overlap_grad_reduce": True}],
    ),
    "S5": ([{**FSDP2, "parallel.pipeline_model_parallel_size": 2}], [FSDP2]),
    "S6": ([{**FSDP2, **MOE, "parallel.expert_model_parallel_size": 2}], [FSDP2]),
    "S7": ([{**FSDP2, "optimizer.use_distributed_optimizer": True}], [FSDP2]),
    "S8": ([{**FSDP2, "precision.gradient_accumulation_fusion": True}], [FSDP2]),
    "S9": ([{**FSDP2, "model.share_embeddings_and_output_weights": True}], [FSDP2]),
    "S10": ([{**FSDP2, "precision.fp16": True, "precision.bf16": False}], [FSDP2]),
    "S11": ([{**FSDP2, "parallel.use_megatron_fsdp": True}], [FSDP2, {"parallel.use_megatron_fsdp": True}]),
    "S15": (
        [FSDP2],
        [{**FSDP2, "precision.grad_reduce_in_fp32": False}, {**FSDP2, "precision.bf16": False}, {}],
    ),
    "S16": ([{**FSDP2, "optimizer.overlap_grad_reduce": True}], [FSDP2, {"optimizer.overlap_grad_reduce": True}]),
    "S17": (
        [{"parallel.torch_fsdp2_reshard_after_forward": False}],
        [{**FSDP2, "parallel.torch_fsdp2_reshard_after_forward": False}],
    ),
    "S12": (
        [{"parallel.data_parallel_sharding_strategy": "optim"}],
        [{"parallel.data_parallel_sharding_strategy": "optim", "parallel.use_megatron_fsdp": True}, {}],
    ),
    "N-fp8": ([FP8, {"precision.fp4": "e2m1"}], [{}]),
    "N-cuda-graph": ([GRAPH, WHOLE_GRAPH], [{}]),
    "N-mtp": ([{"model.mtp_num_layers": 1}], [{}]),
    "N-variant": ([{"model.experimental_attention_variant": "gdn"}, MHC], [{}]),
    "N-gdp": ([{**SELECTIVE, MODULES: ["gdp_in_proj"]}, {OFFLOADED: ["gdp_qkv"]}], [SELECTIVE, FINE]),
    "N-op-fuser": ([FUSER, {"model.moe_paged_stash": True}], [{}]),
    "N-ep-overlap": ([EP_OVERLAP, SHARED_OVERLAP], [{}]),
    "N-fsdp": ([{"parallel.use_megatron_fsdp": True}], [FSDP2]),
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
    ids = [rule.id for rule in RULES]
    assert len(ids) == len(set(ids))
    assert set(CASES) == set(ids)


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


@pytest.mark.parametrize(
    ("settings", "first", "second"),
    [
        ({**OFFLOAD, **UNIFORM, "offload.cpu_offloading_num_layers": 9}, "O1", "R21"),
        ({**OFFLOAD, **FULL}, "R21", "R3"),
        ({**FULL}, "R3", "R4"),
        ({**DISTRIBUTE, **SP2, "recompute.recompute_num_layers": None}, "R4", "R6"),
        ({**SELECTIVE, MODULES: ["mla_up_proj", "shared_experts"], **SHARED_OVERLAP}, "R9", "R11"),
        ({**SELECTIVE, MODULES: ["mla_up_proj", "mhc"], **FINE, OFFLOADED: []}, "R9", "F1"),
        ({**FINE, OFFLOADED: ["attn_proj"], **LOCAL_GRAPH}, "F2", "F9"),
        ({**GRAPH, **UNIFORM, "recompute.recompute_num_layers": 0}, "R23", "R22g"),
        ({**EP_OVERLAP, **GRAPH, **UNIFORM}, "R22g", "R17"),
        ({**GRAPH, **UNIFORM}, "R22g", "N-cuda-graph"),
    ],
)
def test_rules_are_named_in_the_order_of_upstream(settings: Settings, first: str, second: str) -> None:
    named = rules_named(settings)
    assert named.index(first) < named.index(second)


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
    assert "not modelled yet N-cp-latent" in str(refused({**CP2, **LATENT}))
