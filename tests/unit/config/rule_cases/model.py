"""The dense model, its attention and its batch: of each rule what breaks it, and what keeps it."""

from __future__ import annotations

from tests.unit.config.rule_cases.settings import A2A, CP2, FP8, FUSED_LOSS, IMPL, LATENT, LOCAL, MHC, MOE, SP2, Cases

CP4 = {"parallel.context_parallel_size": 4}
LEVELS = "parallel.hierarchical_context_parallel_sizes"

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
    "M8": ([{"model.moe_ffn_hidden_size": 64}], [{**MOE, "model.moe_ffn_hidden_size": 64}, {}]),
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
    "M11": ([{"precision.fp4": "e2m1", **FP8}], [{"precision.fp4": "e2m1"}, FP8]),
    "M13": ([{**FUSED_LOSS, IMPL: "te"}], [FUSED_LOSS, {IMPL: "te"}]),
    "M12": ([{**MHC, "model.mtp_num_layers": 1}], [MHC, {"model.mtp_num_layers": 1}]),
}
