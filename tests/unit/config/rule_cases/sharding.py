"""Optimizers and sharded parameters: of each rule what breaks it, and what keeps it."""

from __future__ import annotations

from tests.unit.config.rule_cases.settings import (
    EP_OVERLAP,
    FSDP2,
    MFSDP,
    MODULES,
    MOE,
    PP2,
    SELECTIVE,
    UNIFORM,
    VPP2,
    Cases,
)

INSTANCES = "optimizer.num_distributed_optimizer_instances"
STEP_OVERLAP = "optimizer.overlap_param_gather_with_optimizer_step"
SHARDED = {"optimizer.use_distributed_optimizer": True}
DP4 = {"parallel.data_parallel_size": 4}
EP = "parallel.expert_model_parallel_size"

CASES: Cases = {
    "S13": ([{**EP_OVERLAP, "model.moe_token_dispatcher_type": "allgather"}], [EP_OVERLAP]),
    "S14": (
        [{**EP_OVERLAP, "model.moe_shared_expert_overlap": True}, {**EP_OVERLAP, "precision.bf16": False}],
        [EP_OVERLAP, {"precision.bf16": False}],
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
    "S20": (
        [{STEP_OVERLAP: True, **VPP2}],
        [{STEP_OVERLAP: True, "optimizer.overlap_param_gather": True, **VPP2}, VPP2],
    ),
    "S21": (
        [{STEP_OVERLAP: True, **PP2}],
        [
            {STEP_OVERLAP: True, **VPP2},
            {STEP_OVERLAP: True, **PP2, "parallel.num_layers_per_virtual_pipeline_stage": 1},
            PP2,
        ],
    ),
    "S18": ([{INSTANCES: 2, **DP4}], [{INSTANCES: 2, **DP4, **SHARDED}, DP4]),
    "S19": (
        [{INSTANCES: 3, **DP4, **SHARDED}, {INSTANCES: 2, **DP4, **SHARDED, **MOE, EP: 4}],
        [{INSTANCES: 4, **DP4, **SHARDED}, {INSTANCES: 2, **DP4, **SHARDED, **MOE, EP: 2}],
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
        [
            {"parallel.data_parallel_sharding_strategy": "optim"},
            {"parallel.suggested_communication_unit_size": 1},
            {"parallel.megatron_fsdp_grad_comm_dtype": "bf16"},
        ],
        [{"parallel.data_parallel_sharding_strategy": "optim", "parallel.use_megatron_fsdp": True}, {}],
    ),
    "S22": (
        [MFSDP],
        [
            {**MFSDP, "parallel.megatron_fsdp_main_grads_dtype": "fp32"},
            {**MFSDP, "precision.grad_reduce_in_fp32": False},
            {**MFSDP, "precision.bf16": False},
            {},
        ],
    ),
}
