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
    "N-cuda-graph": ([GRAPH, WHOLE_GRAPH], [{}]),
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
