"""What is not modelled: of each rule what breaks it, and what keeps it."""

from __future__ import annotations

from tests.unit.config.rule_cases.settings import (
    COUPLED,
    EP_OVERLAP,
    FINE,
    FSDP2,
    FUSER,
    GRAPH,
    HOST_OPTIMIZER,
    MFSDP,
    MHC,
    MODULES,
    MOE,
    OFFLOAD,
    OFFLOADED,
    SELECTIVE,
    SHARED_OVERLAP,
    TP2,
    WHOLE_GRAPH,
    Cases,
)

CASES: Cases = {
    "N-shared-groups": (
        [{"model.num_query_groups": 1, **TP2}],
        [{"model.num_query_groups": 2, **TP2}, {"model.num_query_groups": 1}],
    ),
    "N-optimizer-offload": (
        [{**HOST_OPTIMIZER, "optimizer.optimizer": "sgd"}],
        [HOST_OPTIMIZER, {"optimizer.optimizer_cpu_offload": True, "optimizer.optimizer": "sgd"}],
    ),
    "N-cuda-graph": ([GRAPH, WHOLE_GRAPH, {"cuda_graph.cuda_graph_scope": ["attn"]}], [{}]),
    "N-variant": ([{"model.experimental_attention_variant": "gdn"}, MHC], [{}]),
    "N-gdp": ([{**SELECTIVE, MODULES: ["gdp_in_proj"]}, {OFFLOADED: ["gdp_qkv"]}], [SELECTIVE, FINE]),
    "N-op-fuser": ([FUSER, {"model.moe_paged_stash": True}], [{}]),
    "N-ep-overlap": ([EP_OVERLAP, SHARED_OVERLAP], [{}]),
    "N-fsdp-instances": (
        [{**MFSDP, "parallel.data_parallel_size": 4, "optimizer.num_distributed_optimizer_instances": 2}],
        [MFSDP],
    ),
    "N-mfsdp-pipeline": ([{**MFSDP, "parallel.pipeline_model_parallel_size": 2}], [MFSDP, FSDP2]),
    "N-mfsdp-fusion": (
        [{**MFSDP, "precision.gradient_accumulation_fusion": True}],
        [MFSDP, {"precision.gradient_accumulation_fusion": True}],
    ),
    "N-mfsdp-double-buffer": (
        [{**MFSDP, "parallel.fsdp_double_buffer": True}],
        [MFSDP, {"parallel.fsdp_double_buffer": True}],
    ),
    "N-mfsdp-main-params": (
        [{**MFSDP, "parallel.megatron_fsdp_main_params_dtype": dtype} for dtype in ("bf16", "auto")],
        [MFSDP, {"parallel.megatron_fsdp_main_params_dtype": "bf16"}],
    ),
    "N-mfsdp-optimizer": (
        [
            {**MFSDP, "optimizer.optimizer_cpu_offload": True},
            {**MFSDP, "optimizer.use_precision_aware_optimizer": True},
        ],
        [MFSDP, {"optimizer.optimizer_cpu_offload": True}],
    ),
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
