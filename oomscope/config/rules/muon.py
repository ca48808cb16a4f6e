"""Rules of Muon: what it cannot be combined with, and what of it is not modelled."""

from __future__ import annotations

from oomscope.config.rules.rule import Rule
from oomscope.config.schema import Config


def _is_muon(config: Config) -> bool:
    return config.optimizer.optimizer == "muon"


MUON_RULES: tuple[Rule, ...] = (
    Rule(
        id="U1",
        keys=("optimizer.optimizer", "precision.fp16"),
        applies=lambda config: _is_muon(config) and config.precision.fp16,
        summary="Muon trains in bf16 or fp32.",
        message="muon does not train in fp16",
        remedy="set bf16, or optimizer to adam",
        source="Megatron-Core optimizer/__init__.py, _get_megatron_emerging_optimizer",
    ),
    Rule(
        id="U2",
        keys=("optimizer.optimizer", "parallel.use_torch_fsdp2", "parallel.use_megatron_fsdp"),
        applies=lambda config: (
            _is_muon(config) and (config.parallel.use_torch_fsdp2 or config.parallel.use_megatron_fsdp)
        ),
        summary="Muon does not step parameters that FSDP has cut up.",
        message="muon needs whole matrices, which FSDP cuts up",
        remedy="set use_torch_fsdp2 and use_megatron_fsdp to false, or optimizer to adam",
        source="Megatron-LM training/arguments.py",
    ),
    Rule(
        id="N-layer-wise",
        severity="not_modelled",
        keys=("optimizer.optimizer", "optimizer.use_distributed_optimizer"),
        applies=lambda config: _is_muon(config) and config.optimizer.use_distributed_optimizer,
        summary="Muon with whole matrices dealt out to the data-parallel ranks.",
        message="Muon's layer-wise distributed optimizer is not there",
        remedy="set use_distributed_optimizer to false: every rank then has all states",
        source="Megatron-Core optimizer/layer_wise_optimizer.py",
    ),
    Rule(
        id="N-muon-distributed",
        severity="not_modelled",
        keys=("optimizer.muon_tp_mode",),
        applies=lambda config: (
            _is_muon(config)
            and config.optimizer.muon_tp_mode == "distributed"
            and config.parallel.tensor_model_parallel_size > 1
        ),
        summary="Newton-Schulz iterations of one matrix that TP ranks share.",
        message="muon_tp_mode distributed is not there",
        remedy="set muon_tp_mode to duplicated or blockwise",
        source="Megatron-Core optimizer/emerging_optimizers.py, TensorParallelMuon",
    ),
)
