"""Rules of multi-token prediction."""

from __future__ import annotations

from oomscope.config.rules.rule import Rule
from oomscope.config.schema import Config

_ARGS = "Megatron-LM training/arguments.py"
_MTP = "Megatron-Core transformer/multi_token_prediction.py"


def _predicts(config: Config) -> bool:
    return config.model.mtp_num_layers is not None


def _recomputes(config: Config, method: str) -> bool:
    recompute = config.recompute
    return _predicts(config) and recompute.recompute_granularity == "full" and recompute.recompute_method == method


MTP_RULES: tuple[Rule, ...] = (
    Rule(
        id="MTP1",
        keys=("model.mtp_num_layers", "model.position_embedding_type"),
        applies=lambda config: _predicts(config) and config.model.position_embedding_type == "learned_absolute",
        summary="Multi-token prediction needs rotary positions or none.",
        message="multi-token prediction does not work with learned positions",
        remedy="set position_embedding_type to rope or none, or mtp_num_layers to null",
        source=_ARGS,
    ),
    Rule(
        id="MTP2",
        keys=("model.mtp_num_layers", "recompute.recompute_num_layers"),
        applies=lambda config: _recomputes(config, "uniform") and (config.recompute.recompute_num_layers or 1) != 1,
        summary="Uniform recomputation with multi-token prediction takes one layer at a time.",
        message="uniform recomputation of several layers at once does not work with multi-token prediction",
        remedy="set recompute_num_layers to 1",
        source=f"{_MTP}, _checkpointed_forward",
    ),
    Rule(
        id="MTP3",
        severity="warning",
        keys=("model.mtp_num_layers", "recompute.recompute_method"),
        applies=lambda config: _recomputes(config, "block"),
        summary="Recomputation by blocks leaves the layers of multi-token prediction out.",
        message="the layers of multi-token prediction keep everything, since recompute_method is block",
        remedy="set recompute_method to uniform to recompute them too",
        source=f"{_MTP}, _checkpointed_forward",
    ),
    Rule(
        id="MTP4",
        keys=("model.mtp_num_layers", "recompute.distribute_saved_activations"),
        applies=lambda config: _recomputes(config, "uniform") and config.recompute.distribute_saved_activations,
        summary="Multi-token prediction needs the hidden state whole that distribute_saved_activations would cut.",
        message="distribute_saved_activations cuts the hidden state that multi-token prediction joins with the others",
        remedy="set distribute_saved_activations to false",
        source=f"{_MTP}, MultiTokenPredictionBlock.forward; tensor_parallel/random.py, CheckpointFunction",
    ),
    Rule(
        id="MTP5",
        severity="warning",
        keys=("model.mtp_use_repeated_layer", "model.mtp_num_layers"),
        applies=lambda config: config.model.mtp_use_repeated_layer and not _predicts(config),
        summary="mtp_use_repeated_layer acts with mtp_num_layers alone.",
        message="mtp_use_repeated_layer is ignored, since mtp_num_layers is null",
        remedy="set mtp_num_layers, or remove mtp_use_repeated_layer",
        source=_MTP,
    ),
    Rule(
        id="N-mtp-stage",
        severity="not_modelled",
        keys=("parallel.pipeline_model_parallel_layout", "model.mtp_num_layers"),
        applies=lambda config: any("m" in stage for stage in config.stage_layout[:-1]),
        summary="Multi-token prediction on another stage than that of the loss.",
        message="multi-token prediction on another stage than that of the loss is not there",
        remedy="write every m of the layout into its last stage, before L",
        source="Megatron-Core pipeline_parallel/p2p_communication.py (mtp_standalone)",
    ),
    Rule(
        id="N-mtp-defer",
        severity="not_modelled",
        keys=("model.mtp_num_layers", "parallel.defer_embedding_wgrad_compute"),
        applies=lambda config: _predicts(config) and config.parallel.defer_embedding_wgrad_compute,
        summary="Multi-token prediction with weight gradients of the output layer put off.",
        message="putting off the output layer's weight gradients of several depths is not there",
        remedy="set defer_embedding_wgrad_compute to false, or mtp_num_layers to null",
        source="Megatron-Core tensor_parallel/layers.py (inputs are kept in forward's order, gradients in backward's)",
    ),
    Rule(
        id="N-mtp-fsdp",
        severity="not_modelled",
        keys=("model.mtp_num_layers", "parallel.use_torch_fsdp2", "parallel.use_megatron_fsdp"),
        applies=lambda config: (
            _predicts(config) and (config.parallel.use_torch_fsdp2 or config.parallel.use_megatron_fsdp)
        ),
        summary="Multi-token prediction under torch's FSDP2.",
        message="multi-token prediction with parameters that FSDP shards is not there",
        remedy="set mtp_num_layers to null, or use_torch_fsdp2 and use_megatron_fsdp to false",
        source="Megatron-Core distributed/torch_fully_sharded_data_parallel.py",
    ),
)
