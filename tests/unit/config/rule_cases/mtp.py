"""Multi-token prediction: of each rule what breaks it, and what keeps it."""

from __future__ import annotations

from tests.unit.config.rule_cases.settings import BLOCK, DISTRIBUTE, FSDP2, LAYOUT, PP2, TP2, UNIFORM, Cases

ROPE = {"model.position_embedding_type": "rope"}
MTP = {**ROPE, "model.mtp_num_layers": 1}
REPEATED = "model.mtp_use_repeated_layer"
TWO_AT_ONCE = {**UNIFORM, "recompute.recompute_num_layers": 2}

CASES: Cases = {
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
}
