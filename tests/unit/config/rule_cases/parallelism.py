"""Ranks, pipelines and shards: of each rule what breaks it, and what keeps it."""

from __future__ import annotations

from tests.unit.config.rule_cases.settings import (
    FSDP2,
    GROUP,
    LAYOUT,
    MFSDP,
    MOE,
    NO_OVERLAP,
    PP2,
    SP2,
    TP2,
    VPP,
    VPP2,
    Cases,
)

DEFER = {"parallel.defer_embedding_wgrad_compute": True}
FUSED = {"precision.gradient_accumulation_fusion": True}
LIMIT = "parallel.wgrad_deferral_limit"
INSTANCES = "optimizer.num_distributed_optimizer_instances"
STEP_OVERLAP = "optimizer.overlap_param_gather_with_optimizer_step"
SHARDED = {"optimizer.use_distributed_optimizer": True}
DP4 = {"parallel.data_parallel_size": 4}
EP = "parallel.expert_model_parallel_size"

CASES: Cases = {
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
    "V8": ([{**NO_OVERLAP, "parallel.pipeline_model_parallel_size": 2}], [NO_OVERLAP]),
    "V9": (
        [{**NO_OVERLAP, "parallel.overlap_p2p_comm": True, "parallel.batch_p2p_comm": True}],
        [{**NO_OVERLAP, "parallel.batch_p2p_comm": True}, {"parallel.batch_p2p_comm": True}],
    ),
    "V11": ([{**DEFER, **FUSED}], [{**DEFER, **FUSED, **PP2}, FUSED]),
    "V12": ([{**DEFER, **PP2}], [{**DEFER, **FUSED, **PP2}, PP2]),
    "V13": ([{**PP2, LIMIT: 2}], [{**DEFER, **FUSED, **PP2, LIMIT: 2}]),
    "V10": ([{"parallel.overlap_p2p_comm": True}], [{**NO_OVERLAP, "parallel.overlap_p2p_comm": True}]),
    "V14": (
        [
            {**PP2, LAYOUT: "Et|t*3L", "parallel.num_layers_in_first_pipeline_stage": 1},
            {**PP2, LAYOUT: "Et|t*3L", "parallel.account_for_loss_in_pipeline_split": True},
            {**PP2, LAYOUT: "Et|t*3L", "parallel.num_layers_per_virtual_pipeline_stage": 2},
        ],
        [{**PP2, LAYOUT: "Et|t*3L"}, {**PP2, "parallel.num_layers_in_first_pipeline_stage": 1}],
    ),
    "V15": (
        [{**VPP2, LAYOUT: "Et|t*3L", "data.num_microbatches": 2}],
        [{**VPP2, LAYOUT: "Et|t|t|tL", "data.num_microbatches": 2}, {**PP2, VPP: 1, LAYOUT: "Et|t*3L"}],
    ),
    "V16": (
        [
            {**PP2, LAYOUT: "Et|t|t*2L"},
            {LAYOUT: "Et|t*3L"},
            {**PP2, LAYOUT: "Et|t*4L"},
            {**PP2, LAYOUT: "tE|t*3L"},
            {**PP2, LAYOUT: "Et|t*3"},
            {**PP2, LAYOUT: "Et|EtttL"},
            {**PP2, LAYOUT: "EtL|t*3L"},
            {**PP2, LAYOUT: "Et|tmttL"},
        ],
        [
            {**PP2, LAYOUT: "Et*4|L"},
            {LAYOUT: "Et*4L"},
            {**PP2, LAYOUT: [["embedding", "decoder"], ["decoder", "decoder", "decoder", "loss"]]},
            {**PP2, LAYOUT: "Ett||t|tL", "data.num_microbatches": 2},
        ],
    ),
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
    "P12": (
        [{"parallel.context_parallel_size": 3}],
        [{"parallel.context_parallel_size": 2}, {"data.seq_length": 127}],
    ),
    "P14": ([{"parallel.tp_comm_overlap": True}], [{**SP2, "parallel.tp_comm_overlap": True}, SP2]),
    "P13": (
        [{"parallel.virtual_pipeline_model_parallel_size": 2}],
        [{"parallel.virtual_pipeline_model_parallel_size": 2, "parallel.pipeline_model_parallel_size": 2}],
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
