"""Rules of the pipeline: how layers are shared out over stages and model chunks, and whose turn it is."""

from __future__ import annotations

from oomscope.config.rules.layer_split import check_layout, split_layers
from oomscope.config.rules.rule import Rule
from oomscope.config.schema import Config
from oomscope.errors import ConfigError

_ARGS = "Megatron-LM training/arguments.py"
_TRANSFORMER = "Megatron-Core transformer/transformer_config.py"
_MODEL_PARALLEL = "Megatron-Core model_parallel_config.py"
_SCHEDULES = "Megatron-Core pipeline_parallel/schedules.py, forward_backward_pipelining_with_interleaving"


def _misfit(config: Config) -> str:
    """Return what keeps the layers from being shared out, empty where they are."""
    try:
        if not config.stage_layout:
            split_layers(config)
    except ConfigError as error:
        return error.message
    return ""


def _misfit_of_layout(config: Config) -> str:
    """Return what of a layout does not fit, empty where all does or none is given."""
    try:
        if config.stage_layout:
            check_layout(config)
    except ConfigError as error:
        return error.message
    return ""


def _is_uneven(config: Config) -> bool:
    parallel = config.parallel
    return (parallel.num_layers_in_first_pipeline_stage, parallel.num_layers_in_last_pipeline_stage) != (None, None)


def _counts_ends(config: Config) -> bool:
    parallel = config.parallel
    return parallel.account_for_embedding_in_pipeline_split or parallel.account_for_loss_in_pipeline_split


def _does_not_divide_stage(config: Config) -> bool:
    per_chunk = config.parallel.num_layers_per_virtual_pipeline_stage
    return per_chunk is not None and not _is_uneven(config) and config.layers_of_even_stage % per_chunk != 0


def _last_group(config: Config) -> int:
    return config.num_microbatches % config.microbatch_group_size


PIPELINE_RULES: tuple[Rule, ...] = (
    Rule(
        id="P6",
        keys=("parallel.pipeline_model_parallel_size", "model.num_layers"),
        applies=lambda config: bool(_misfit(config)),
        summary="Layers are shared out evenly over pipeline stages, and those of a stage over its model chunks.",
        message=_misfit,
        remedy="let pipeline_model_parallel_size * virtual_pipeline_model_parallel_size divide num_layers",
        source="Megatron-Core transformer/transformer_block.py, get_num_layers_to_build",
    ),
    Rule(
        id="V1",
        keys=("parallel.num_layers_in_first_pipeline_stage", "parallel.account_for_embedding_in_pipeline_split"),
        applies=lambda config: _is_uneven(config) and _counts_ends(config),
        summary="Either the ends are given their layers, or embedding and loss count as layers.",
        message="layers of the first or last stage are given, and embedding or loss counts as a layer",
        remedy="remove num_layers_in_first/last_pipeline_stage, or account_for_embedding/loss_in_pipeline_split",
        source=_TRANSFORMER,
    ),
    Rule(
        id="V2",
        keys=(
            "parallel.num_layers_per_virtual_pipeline_stage",
            "parallel.virtual_pipeline_model_parallel_size",
        ),
        applies=lambda config: (
            config.parallel.num_layers_per_virtual_pipeline_stage is not None
            and config.parallel.virtual_pipeline_model_parallel_size is not None
        ),
        summary="The layers of a model chunk or the number of chunks is given, not both.",
        message="num_layers_per_virtual_pipeline_stage and virtual_pipeline_model_parallel_size are both given",
        remedy="remove one of them",
        source=_ARGS,
    ),
    Rule(
        id="V3",
        keys=(
            "parallel.num_layers_per_virtual_pipeline_stage",
            "parallel.num_layers_in_first_pipeline_stage",
            "parallel.num_layers_in_last_pipeline_stage",
        ),
        applies=lambda config: config.parallel.num_layers_per_virtual_pipeline_stage is not None and _is_uneven(config),
        summary="With uneven stages the number of chunks is given, not their layers.",
        message="num_layers_per_virtual_pipeline_stage does not say how many chunks uneven stages have",
        remedy="set virtual_pipeline_model_parallel_size in its place",
        source=_ARGS,
    ),
    Rule(
        id="V4",
        keys=("parallel.num_layers_per_virtual_pipeline_stage", "model.num_layers"),
        applies=_does_not_divide_stage,
        summary="num_layers_per_virtual_pipeline_stage divides the layers of a stage.",
        message=lambda config: (
            f"the {config.layers_of_even_stage} layers of a stage cannot be cut into model chunks of "
            f"{config.parallel.num_layers_per_virtual_pipeline_stage}"
        ),
        remedy="let num_layers_per_virtual_pipeline_stage divide num_layers / pipeline_model_parallel_size",
        source=_ARGS,
    ),
    Rule(
        id="V5",
        keys=(
            "parallel.microbatch_group_size_per_vp_stage",
            "parallel.pipeline_model_parallel_size",
            "data.num_microbatches",
        ),
        applies=lambda config: (
            config.model_chunks > 1
            and not config.parallel.pipeline_model_parallel_size
            <= config.microbatch_group_size
            <= config.num_microbatches
        ),
        summary="A model chunk takes at least pipeline_model_parallel_size microbatches in a row, and at most all.",
        message=lambda config: (
            f"a model chunk cannot take {config.microbatch_group_size} of {config.num_microbatches} microbatches in a "
            f"row in a pipeline of {config.parallel.pipeline_model_parallel_size} stages"
        ),
        remedy="let pipeline_model_parallel_size <= microbatch_group_size_per_vp_stage <= the step's microbatches",
        source=_SCHEDULES,
    ),
    Rule(
        id="V6",
        keys=("data.num_microbatches", "parallel.microbatch_group_size_per_vp_stage"),
        applies=lambda config: (
            config.model_chunks > 1 and 0 < _last_group(config) < config.parallel.pipeline_model_parallel_size
        ),
        summary="The last group of microbatches is whole, or has at least pipeline_model_parallel_size of them.",
        message=lambda config: (
            f"the last group has {_last_group(config)} microbatches, fewer than the "
            f"{config.parallel.pipeline_model_parallel_size} pipeline stages"
        ),
        remedy="let microbatch_group_size_per_vp_stage divide the step's microbatches",
        source=_SCHEDULES,
    ),
    Rule(
        id="V8",
        keys=("parallel.overlap_p2p_comm", "parallel.pipeline_model_parallel_size"),
        applies=lambda config: (
            config.model_chunks > 1
            and not config.overlap_p2p_comm
            and config.parallel.pipeline_model_parallel_size == 2
        ),
        summary="Model chunks without overlap_p2p_comm need more than two pipeline stages.",
        message="without overlap_p2p_comm two pipeline stages with model chunks send each other two tensors at once",
        remedy="set pipeline_model_parallel_size above 2, or remove overlap_p2p_comm",
        source=_ARGS,
    ),
    Rule(
        id="V9",
        keys=("parallel.overlap_p2p_comm", "parallel.batch_p2p_comm"),
        applies=lambda config: config.overlap_p2p_comm and config.parallel.batch_p2p_comm is True,
        summary="With model chunks overlap_p2p_comm and batch_p2p_comm exclude each other.",
        message="batch_p2p_comm is set, and a batch cannot be waited for in parts, as overlap_p2p_comm does",
        remedy="set overlap_p2p_comm or batch_p2p_comm to false",
        source=_SCHEDULES,
    ),
    Rule(
        id="V11",
        keys=("parallel.defer_embedding_wgrad_compute", "parallel.pipeline_model_parallel_size"),
        applies=lambda config: (
            config.parallel.defer_embedding_wgrad_compute and config.parallel.pipeline_model_parallel_size == 1
        ),
        summary="defer_embedding_wgrad_compute needs a pipeline.",
        message="defer_embedding_wgrad_compute puts work off until the pipeline drains, and there is one stage",
        remedy="set pipeline_model_parallel_size above 1, or defer_embedding_wgrad_compute to false",
        source=_MODEL_PARALLEL,
    ),
    Rule(
        id="V12",
        keys=("parallel.defer_embedding_wgrad_compute", "precision.gradient_accumulation_fusion"),
        applies=lambda config: (
            config.parallel.defer_embedding_wgrad_compute and not config.precision.gradient_accumulation_fusion
        ),
        summary="defer_embedding_wgrad_compute needs gradient_accumulation_fusion.",
        message="defer_embedding_wgrad_compute adds to main gradients, and gradient_accumulation_fusion is off",
        remedy="set gradient_accumulation_fusion, or defer_embedding_wgrad_compute to false",
        source=_MODEL_PARALLEL,
    ),
    Rule(
        id="V13",
        severity="warning",
        keys=("parallel.wgrad_deferral_limit",),
        applies=lambda config: (
            config.parallel.wgrad_deferral_limit > 0 and not config.parallel.defer_embedding_wgrad_compute
        ),
        summary="wgrad_deferral_limit acts with defer_embedding_wgrad_compute alone.",
        message="wgrad_deferral_limit is ignored, since defer_embedding_wgrad_compute is false",
        remedy="set defer_embedding_wgrad_compute, or remove wgrad_deferral_limit",
        source=_MODEL_PARALLEL,
    ),
    Rule(
        id="V10",
        severity="warning",
        keys=("parallel.overlap_p2p_comm",),
        applies=lambda config: config.model_chunks == 1 and config.parallel.overlap_p2p_comm is True,
        summary="overlap_p2p_comm acts on model chunks alone.",
        message="overlap_p2p_comm is ignored, since a rank holds one model chunk",
        remedy="remove overlap_p2p_comm",
        source=_ARGS,
    ),
    Rule(
        id="V14",
        keys=(
            "parallel.pipeline_model_parallel_layout",
            "parallel.num_layers_in_first_pipeline_stage",
            "parallel.num_layers_in_last_pipeline_stage",
            "parallel.account_for_embedding_in_pipeline_split",
            "parallel.num_layers_per_virtual_pipeline_stage",
        ),
        applies=lambda config: (
            bool(config.stage_layout)
            and (
                _is_uneven(config)
                or _counts_ends(config)
                or config.parallel.num_layers_per_virtual_pipeline_stage is not None
            )
        ),
        summary="A layout alone says which stage holds which layers.",
        message="pipeline_model_parallel_layout is given, and another key that shares out layers too",
        remedy="remove num_layers_in_first/last_pipeline_stage, account_for_*_in_pipeline_split and "
        "num_layers_per_virtual_pipeline_stage, or the layout",
        source=_TRANSFORMER,
    ),
    Rule(
        id="V15",
        keys=("parallel.pipeline_model_parallel_layout", "parallel.virtual_pipeline_model_parallel_size"),
        applies=lambda config: (
            bool(config.stage_layout)
            and config.parallel.virtual_pipeline_model_parallel_size not in {None, config.model_chunks}
        ),
        summary="The model chunks of a rank are those of its layout.",
        message=lambda config: (
            f"virtual_pipeline_model_parallel_size is {config.parallel.virtual_pipeline_model_parallel_size}, and the "
            f"layout gives each rank {config.model_chunks}"
        ),
        remedy="remove virtual_pipeline_model_parallel_size, or write another layout",
        source=_TRANSFORMER,
    ),
    Rule(
        id="V16",
        keys=(
            "parallel.pipeline_model_parallel_layout",
            "parallel.pipeline_model_parallel_size",
            "model.num_layers",
        ),
        applies=lambda config: bool(_misfit_of_layout(config)),
        summary="A layout has the model's layers between embedding and loss, on stages that the ranks share evenly.",
        message=_misfit_of_layout,
        remedy="write pipeline_model_parallel_size stages, or a multiple, with num_layers t between E and L",
        source="Megatron-Core transformer/pipeline_parallel_layer_layout.py, validate_layer_layout",
    ),
    Rule(
        id="V7",
        severity="warning",
        keys=("parallel.microbatch_group_size_per_vp_stage",),
        applies=lambda config: (
            config.model_chunks == 1 and config.parallel.microbatch_group_size_per_vp_stage is not None
        ),
        summary="microbatch_group_size_per_vp_stage acts on model chunks alone.",
        message="microbatch_group_size_per_vp_stage is ignored, since a rank holds one model chunk",
        remedy="remove microbatch_group_size_per_vp_stage",
        source=_SCHEDULES,
    ),
)
