"""Experts: of each rule what breaks it, and what keeps it."""

from __future__ import annotations

from tests.unit.config.rule_cases.settings import (
    BALANCING,
    BEST_GROUPS,
    CAPACITY_FACTOR,
    DROP_POLICY,
    EXPERT_BIAS,
    GROUPS,
    MOE,
    SHARED_WIDTH,
    SIGMOID,
    SP2,
    Cases,
)

CASES: Cases = {
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
    "N-expert-bias": ([{**MOE, "model.add_bias_linear": True}], [MOE, {"model.add_bias_linear": True}]),
}
