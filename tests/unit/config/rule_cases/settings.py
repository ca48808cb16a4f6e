"""Settings that the cases of several rules are made of."""

from __future__ import annotations

from typing import Any

Settings = dict[str, Any]
Cases = dict[str, tuple[list[Settings], list[Settings]]]
"""Of each rule what breaks it, and what keeps it."""

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
LAYOUT = "parallel.pipeline_model_parallel_layout"
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
MFSDP = {"parallel.use_megatron_fsdp": True, "parallel.data_parallel_sharding_strategy": "optim_grads_params"}
FSDP2 = {"parallel.use_torch_fsdp2": True, "model.share_embeddings_and_output_weights": False}

FUSED_LOSS = {"model.cross_entropy_loss_fusion": True}
IMPL = "model.cross_entropy_fusion_impl"
