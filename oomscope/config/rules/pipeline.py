"""Rules of the pipeline: how layers are shared out over stages and model chunks, and whose turn it is."""

from __future__ import annotations

from collections.abc import Callable

from oomscope.config.rules.layer_split import check_layout, split_layers
from oomscope.config.rules.rule import ARGS, MODEL_PARALLEL, TRANSFORMER, Rule, conflict, error, needs
from oomscope.config.schema import Config
from oomscope.errors import ConfigError

_SCHEDULES = "Megatron-Core pipeline_parallel/schedules.py, forward_backward_pipelining_with_interleaving"


def _misfit(config: Config, check: Callable[[Config], object]) -> str | None:
    """Return what ``check`` says against the configuration."""
    try:
        check(config)
    except ConfigError as error:
        return error.message
    return None


def _is_uneven(config: Config) -> bool:
    parallel = config.parallel
    return (parallel.num_layers_in_first_pipeline_stage, parallel.num_layers_in_last_pipeline_stage) != (None, None)


def _counts_ends(config: Config) -> bool:
    parallel = config.parallel
    return parallel.account_for_embedding_in_pipeline_split or parallel.account_for_loss_in_pipeline_split


def _does_not_divide_stage(config: Config) -> bool:
    per_chunk = config.parallel.num_layers_per_virtual_pipeline_stage
    return per_chunk is not None and not _is_uneven(config) and config.layers_of_even_stage % per_chunk != 0


def _has_chunks_and_microbatches(config: Config) -> bool:
    """Whether model chunks take turns at a known number of microbatches: the batch splits evenly."""
    return config.model_chunks > 1 and not config.rest_of_batch


def _rest_of_groups(config: Config) -> int | None:
    """Return the microbatches of the last group, where they are fewer than the stages."""
    rest = config.num_microbatches % config.microbatch_group_size
    return rest if rest < config.parallel.pipeline_model_parallel_size else None


PIPELINE_RULES: tuple[Rule, ...] = (
    error(
        id="P6",
        keys="parallel.pipeline_model_parallel_size model.num_layers",
        applies=lambda c: not c.stage_layout and _misfit(c, split_layers),
        message="{found}",
        remedy="let pipeline_model_parallel_size * virtual_pipeline_model_parallel_size divide num_layers",
        source="Megatron-Core transformer/transformer_block.py, get_num_layers_to_build",
    ),
    error(
        id="V1",
        keys="parallel.num_layers_in_first_pipeline_stage parallel.account_for_embedding_in_pipeline_split",
        applies=lambda c: _is_uneven(c) and _counts_ends(c),
        message="layers of the first or last stage are given, and embedding or loss counts as a layer",
        remedy="remove num_layers_in_first/last_pipeline_stage, or account_for_embedding/loss_in_pipeline_split",
        source=TRANSFORMER,
    ),
    conflict(
        "V2",
        "parallel.num_layers_per_virtual_pipeline_stage",
        "parallel.virtual_pipeline_model_parallel_size",
        ARGS,
    ),
    conflict(
        "V3",
        "parallel.num_layers_per_virtual_pipeline_stage",
        "parallel.num_layers_in_first_pipeline_stage parallel.num_layers_in_last_pipeline_stage",
        ARGS,
        why="which leaves the number of chunks of a stage open",
        remedy="set virtual_pipeline_model_parallel_size in its place",
    ),
    error(
        id="V4",
        keys="parallel.num_layers_per_virtual_pipeline_stage model.num_layers",
        applies=_does_not_divide_stage,
        message="the {c.layers_of_even_stage} layers of a stage cannot be cut into model chunks of "
        "{c.parallel.num_layers_per_virtual_pipeline_stage}",
        remedy="let num_layers_per_virtual_pipeline_stage divide num_layers / pipeline_model_parallel_size",
        source=ARGS,
    ),
    error(
        id="V5",
        keys="parallel.microbatch_group_size_per_vp_stage parallel.pipeline_model_parallel_size data.num_microbatches",
        applies=lambda c: (
            _has_chunks_and_microbatches(c)
            and not c.parallel.pipeline_model_parallel_size <= c.microbatch_group_size <= c.num_microbatches
        ),
        message="a model chunk cannot take {c.microbatch_group_size} of {c.num_microbatches} microbatches in a "
        "row in a pipeline of {c.parallel.pipeline_model_parallel_size} stages",
        remedy="let pipeline_model_parallel_size <= microbatch_group_size_per_vp_stage <= the step's microbatches",
        source=_SCHEDULES,
    ),
    error(
        id="V6",
        keys="data.num_microbatches parallel.microbatch_group_size_per_vp_stage",
        applies=lambda c: _has_chunks_and_microbatches(c) and _rest_of_groups(c),
        message="the last group has {found} microbatches, fewer than the "
        "{c.parallel.pipeline_model_parallel_size} pipeline stages",
        remedy="let microbatch_group_size_per_vp_stage divide the step's microbatches",
        source=_SCHEDULES,
    ),
    error(
        id="V8",
        keys="parallel.overlap_p2p_comm parallel.pipeline_model_parallel_size",
        applies=lambda c: (
            c.model_chunks > 1 and not c.overlap_p2p_comm and c.parallel.pipeline_model_parallel_size == 2
        ),
        message="without overlap_p2p_comm two pipeline stages with model chunks send each other two tensors at once",
        remedy="set pipeline_model_parallel_size above 2, or remove overlap_p2p_comm",
        source=ARGS,
    ),
    error(
        id="V9",
        keys="parallel.overlap_p2p_comm parallel.batch_p2p_comm",
        applies=lambda c: c.overlap_p2p_comm and c.parallel.batch_p2p_comm is True,
        message="batch_p2p_comm is set, and a batch cannot be waited for in parts, as overlap_p2p_comm does",
        remedy="set overlap_p2p_comm or batch_p2p_comm to false",
        source=_SCHEDULES,
    ),
    needs(
        "V11",
        "parallel.defer_embedding_wgrad_compute",
        "parallel.pipeline_model_parallel_size",
        MODEL_PARALLEL,
        why="since it defers work until the pipeline drains",
    ),
    needs(
        "V12",
        "parallel.defer_embedding_wgrad_compute",
        "precision.gradient_accumulation_fusion",
        MODEL_PARALLEL,
        why="since it adds to main gradients",
    ),
    conflict(
        "V14",
        "parallel.pipeline_model_parallel_layout",
        "parallel.num_layers_in_first_pipeline_stage parallel.num_layers_in_last_pipeline_stage"
        " parallel.account_for_embedding_in_pipeline_split parallel.account_for_loss_in_pipeline_split"
        " parallel.num_layers_per_virtual_pipeline_stage",
        TRANSFORMER,
        why="which shares out layers too",
    ),
    error(
        id="V15",
        keys="parallel.pipeline_model_parallel_layout parallel.virtual_pipeline_model_parallel_size",
        applies=lambda c: (
            c.stage_layout and c.parallel.virtual_pipeline_model_parallel_size not in {None, c.model_chunks}
        ),
        message="virtual_pipeline_model_parallel_size is {c.parallel.virtual_pipeline_model_parallel_size}, and "
        "the layout gives each rank {c.model_chunks}",
        remedy="remove virtual_pipeline_model_parallel_size, or write another layout",
        source=TRANSFORMER,
    ),
    error(
        id="V16",
        keys="parallel.pipeline_model_parallel_layout parallel.pipeline_model_parallel_size model.num_layers",
        applies=lambda c: c.stage_layout and _misfit(c, check_layout),
        message="{found}",
        remedy="write pipeline_model_parallel_size stages, or a multiple, with num_layers t between E and L",
        source="Megatron-Core transformer/pipeline_parallel_layer_layout.py, validate_layer_layout",
    ),
)
