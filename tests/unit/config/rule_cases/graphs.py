"""CUDA graphs: of each rule what breaks it, and what keeps it."""

from __future__ import annotations

from tests.unit.config.rule_cases.settings import (
    DROPPING,
    FINE,
    GRAPH,
    GRAPHED,
    INFLIGHT,
    LOCAL_GRAPH,
    MODULES,
    MOE,
    OFFLOAD,
    OFFLOADED,
    PADDED,
    SELECTIVE,
    UNIFORM,
    WHOLE_GRAPH,
    Cases,
)

CASES: Cases = {
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
}
