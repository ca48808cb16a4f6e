"""The model, its experts and its number formats: of each rule what breaks it, and what keeps it."""

from __future__ import annotations

from tests.unit.config.rule_cases.settings import (
    A2A,
    AWARE,
    BALANCING,
    BEST_GROUPS,
    BLOCK,
    CAPACITY_FACTOR,
    CP2,
    DISTRIBUTE,
    DROP_POLICY,
    EXPERT_BIAS,
    FINE,
    FP8,
    FSDP2,
    GROUPS,
    LATENT,
    LAYOUT,
    LOCAL,
    MOE,
    OFFLOAD,
    PP2,
    SHARED_WIDTH,
    SIGMOID,
    SP2,
    TENSORWISE,
    TP2,
    UNIFORM,
    Cases,
)

CP4 = {"parallel.context_parallel_size": 4}
LEVELS = "parallel.hierarchical_context_parallel_sizes"
ROPE = {"model.position_embedding_type": "rope"}
MTP = {**ROPE, "model.mtp_num_layers": 1}
REPEATED = "model.mtp_use_repeated_layer"
TWO_AT_ONCE = {**UNIFORM, "recompute.recompute_num_layers": 2}
ENDS = {"precision.first_last_layers_bf16": True}
START = "precision.num_layers_at_start_in_bf16"
RECIPE = "precision.fp8_recipe"
SHARDED = {"optimizer.use_distributed_optimizer": True}
PARAMS = {**TENSORWISE, **SHARDED, "precision.fp8_param": True}
WGRAD = "precision.fp8_wgrad"

CASES: Cases = {
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
    "M9": (
        [{"precision.bf16": False, "precision.grad_reduce_in_fp32": False}],
        [{"precision.grad_reduce_in_fp32": False}, {"precision.bf16": False}],
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
        [
            {**CP2, A2A: "a2a", "model.num_query_groups": 1},
            {**CP2, A2A: "a2a", **SP2, "model.num_query_groups": 2},
            {**CP4, A2A: "a2a+p2p", LEVELS: [4, 1], "model.num_query_groups": 2},
        ],
        [
            {**CP4, A2A: "a2a+p2p", LEVELS: [2, 2], "model.num_query_groups": 2},
            {**CP2, A2A: "a2a"},
            {**CP2, "model.num_query_groups": 1},
            {A2A: "a2a", "model.num_query_groups": 1},
        ],
    ),
    "A3": ([{**CP2, **SP2, "data.seq_length": 130}], [{**CP2, **SP2}, {**SP2, "data.seq_length": 130}]),
    "A4": ([{**LATENT, "model.qk_pos_emb_head_dim": 63}], [LATENT, {"model.qk_pos_emb_head_dim": 63}]),
    "A5": ([{**LATENT, "model.num_query_groups": 2}], [LATENT, {"model.num_query_groups": 2}]),
    "A6": ([{**LATENT, "model.kv_channels": 32}], [LATENT, {"model.kv_channels": 32}]),
    "A7": (
        [{**CP2, A2A: "a2a+p2p"}, {**CP4, A2A: "a2a+p2p", LEVELS: [2, 4]}, {LEVELS: [2, 2]}],
        [{**CP4, A2A: "a2a+p2p", LEVELS: [2, 2]}, {A2A: "a2a+p2p"}],
    ),
    "A8": ([{**CP4, LEVELS: [2, 2]}], [{**CP4, A2A: "a2a+p2p", LEVELS: [2, 2]}, CP4]),
    "N-cp-latent": ([{**CP2, **LATENT}], [CP2, LATENT]),
    "M10": ([{"precision.fp8_param": True}], [{"precision.fp8_param": True, **FP8}, FP8]),
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
    "N-expert-bias": ([{**MOE, "model.add_bias_linear": True}], [MOE, {"model.add_bias_linear": True}]),
    "E8": (
        [{"model.moe_grouped_gemm": True}, {CAPACITY_FACTOR: 1.0}, {"model.moe_ffn_hidden_size": 64}],
        [{**MOE, "model.moe_grouped_gemm": True}, {}],
    ),
    "MTP1": ([{"model.mtp_num_layers": 1}], [MTP, {}, {**MTP, "model.position_embedding_type": "none"}]),
    "MTP2": ([{**MTP, **TWO_AT_ONCE}], [{**MTP, **UNIFORM}, TWO_AT_ONCE, {**MTP, **BLOCK}]),
    "MTP3": ([{**MTP, **BLOCK}], [{**MTP, **UNIFORM}, BLOCK]),
    "MTP4": ([{**MTP, **TP2, **DISTRIBUTE}], [{**TP2, **DISTRIBUTE}, {**MTP, **UNIFORM}]),
    "MTP5": ([{REPEATED: True}], [{**MTP, REPEATED: True}]),
    "N-mtp-stage": (
        [{**MTP, **PP2, LAYOUT: "Et*4m|L"}],
        [{**MTP, **PP2, LAYOUT: "Et*3|tmL"}, {**MTP, **PP2, LAYOUT: "Et*4|mL"}, {**PP2, LAYOUT: "Et*2|t*2L"}],
    ),
    "N-mtp-defer": (
        [{**MTP, "parallel.defer_embedding_wgrad_compute": True}],
        [{"parallel.defer_embedding_wgrad_compute": True}],
    ),
    "N-mtp-fsdp": (
        [{**MTP, **FSDP2, "parallel.data_parallel_size": 2}],
        [MTP, {**FSDP2, "parallel.data_parallel_size": 2}],
    ),
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
    "N-fp4": ([{"precision.fp4": "e2m1"}], [{}]),
    "N-fp8-recipe": (
        [{**FP8, RECIPE: "custom"}, {**FP8, WGRAD: False}],
        [TENSORWISE, {RECIPE: "custom"}, {WGRAD: False}],
    ),
    "N-fp8-attention": (
        [{**FP8, "precision.fp8_dot_product_attention": True}, {"precision.fp8_multi_head_attention": True}],
        [FP8],
    ),
    "N-fp8-param": (
        [{**PARAMS, RECIPE: "mxfp8"}, {**PARAMS, **AWARE}, {**PARAMS, "optimizer.optimizer": "muon"}],
        [PARAMS, {**TENSORWISE, **AWARE}],
    ),
    "N-fp8": (
        [
            {**FP8, "precision.bf16": False},
            {**FP8, **MOE},
            {**FP8, **LATENT},
            {**FP8, "model.mtp_num_layers": 1},
            {**FP8, **OFFLOAD},
            {**FP8, **FINE},
            {**FP8, **FSDP2},
        ],
        [FP8, MOE, {"precision.bf16": False}],
    ),
}
