"""Precision: of each rule what breaks it, and what keeps it."""

from __future__ import annotations

from tests.unit.config.rule_cases.settings import AWARE, PP2, TP2, Cases

MUON = {"optimizer.optimizer": "muon"}

CASES: Cases = {
    "T1": ([{**AWARE, "optimizer.optimizer": "sgd"}], [AWARE, {"optimizer.optimizer": "sgd"}]),
    "T2": (
        [{"optimizer.use_precision_aware_optimizer": True}],
        [AWARE, {"optimizer.use_distributed_optimizer": True}],
    ),
    "T3": ([{"optimizer.exp_avg_dtype": "bf16"}], [{**AWARE, "optimizer.exp_avg_dtype": "bf16"}]),
    "T4": (
        [{**AWARE, "optimizer.main_grads_dtype": "bf16"}],
        [{**AWARE, "optimizer.main_grads_dtype": "bf16", "precision.grad_reduce_in_fp32": False}, AWARE],
    ),
    "T5": ([{"optimizer.min_loss_scale": 2.0, "optimizer.initial_loss_scale": 1.0}], [{}]),
    "U1": (
        [{**MUON, "precision.fp16": True, "precision.bf16": False}],
        [{**MUON, "precision.bf16": False}, {"precision.fp16": True, "precision.bf16": False}],
    ),
    "U2": ([{**MUON, "parallel.use_torch_fsdp2": True}], [MUON, {**MUON, **PP2}]),
    "N-layer-wise": ([{**MUON, "optimizer.use_distributed_optimizer": True}], [MUON]),
    "N-muon-distributed": (
        [{**MUON, **TP2, "optimizer.muon_tp_mode": "distributed"}],
        [{**MUON, "optimizer.muon_tp_mode": "distributed"}, {**MUON, **TP2, "optimizer.muon_tp_mode": "blockwise"}],
    ),
    "N-narrow-states": (
        [{**AWARE, "optimizer.exp_avg_sq_dtype": "fp8"}, {**AWARE, "optimizer.main_params_dtype": "fp16"}],
        [{**AWARE, "optimizer.exp_avg_sq_dtype": "fp16"}],
    ),
}
