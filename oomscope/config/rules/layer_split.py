"""Which layers each pipeline rank holds: one stretch of them, or with the interleaved schedule one a model chunk.

Chunk c of rank r is virtual stage c·p + r, so that hidden states go round all ranks before the next chunk's turn.
The rules are Megatron-Core's (``transformer/transformer_block.py::get_num_layers_to_build``, and for uneven stages
``transformer/transformer_config.py``), also of stages that a layout names
(``transformer/pipeline_parallel_layer_layout.py``).
"""

from __future__ import annotations

from typing import NamedTuple

from oomscope.config.schema import Config
from oomscope.errors import ConfigError


class LayerSplit(NamedTuple):
    """Layers of the first, of each middle and of the last stage; embedding and loss included where they count."""

    first: int
    middle: int
    last: int


def stage_layers(config: Config, pp_rank: int) -> list[range]:
    """Return the global indices of the layers of each model chunk of stage ``pp_rank``.

    Raises:
        ConfigError: the layers cannot be shared out.
    """
    return [chunk_layers(config, pp_rank, chunk) for chunk in range(config.model_chunks)]


def chunk_layers(config: Config, pp_rank: int, chunk: int) -> range:
    """Return the global indices of the layers that model chunk ``chunk`` of stage ``pp_rank`` holds.

    Raises:
        ConfigError: the layers cannot be shared out.
    """
    parallel, chunks = config.parallel, config.model_chunks
    if config.stage_layout:
        return _layers_in_layout(config, chunk * parallel.pipeline_model_parallel_size + pp_rank)
    split, last_rank = split_layers(config), parallel.pipeline_model_parallel_size - 1
    is_first, is_last = pp_rank == chunk == 0, (pp_rank, chunk) == (last_rank, chunks - 1)
    earlier_stages = split.first + split.middle * (pp_rank - 1) if pp_rank else 0
    of_stage = split.first if pp_rank == 0 else split.last if pp_rank == last_rank else split.middle
    start = (chunk * _counted_layers(config) + earlier_stages) // chunks
    end = start + of_stage // chunks
    start -= parallel.account_for_embedding_in_pipeline_split and not is_first
    end -= parallel.account_for_embedding_in_pipeline_split
    end -= parallel.account_for_loss_in_pipeline_split and is_last
    return range(start, end)


def most_layers_of_chunk(config: Config) -> int:
    """Return the layers of the largest model chunk, embedding and loss included where they count.

    Raises:
        ConfigError: the layers cannot be shared out.
    """
    if config.stage_layout:
        return max(stage.count("t") for stage in config.stage_layout)
    return max(split_layers(config)) // config.model_chunks


def split_layers(config: Config) -> LayerSplit:
    """Share the layers out over the stages.

    Raises:
        ConfigError: the layers cannot be shared out over the stages, or those of a stage over its model chunks.
    """
    parallel, stages, chunks = config.parallel, config.parallel.pipeline_model_parallel_size, config.model_chunks
    first, last = parallel.num_layers_in_first_pipeline_stage, parallel.num_layers_in_last_pipeline_stage
    left = _counted_layers(config) - (first or 0) - (last or 0)
    sharers = stages - (first is not None) - (last is not None)
    if sharers < 0 or (left > 0) != (sharers > 0) or left % max(sharers, 1):
        raise ConfigError(
            f"{left} layers cannot be shared out evenly over {sharers} pipeline stages",
            where="parallel.pipeline_model_parallel_size",
            remedy="let it divide num_layers, less what the first and last stage are given",
        )
    share = left // max(sharers, 1)
    split = LayerSplit(share if first is None else first, share, share if last is None else last)
    for of_stage in split:
        if of_stage % chunks:
            raise ConfigError(
                f"the {of_stage} layers of a pipeline stage cannot be shared out evenly over {chunks} model chunks",
                where="parallel.virtual_pipeline_model_parallel_size",
                remedy="let it divide the layers of every stage",
            )
    return split


def check_layout(config: Config) -> None:
    """Hold ``pipeline_model_parallel_layout`` against the model and the pipeline.

    Raises:
        ConfigError: its stages, layers or ends are not those of the configuration (Megatron-Core
            ``PipelineParallelLayerLayout.validate_layer_layout``).
    """
    stages, size = config.stage_layout, config.parallel.pipeline_model_parallel_size
    signs = "".join(stages)
    layers, depths = signs.count("t"), signs.count("m")
    if len(stages) % size or (size == 1 and len(stages) > 1):
        wrong = f"it has {len(stages)} stages, which {size} pipeline ranks cannot share"
    elif signs.count("E") != 1 or not stages[0].startswith("E"):
        wrong = "it does not begin with its one embedding, E"
    elif signs.count("L") != 1 or not stages[-1].endswith("L"):
        wrong = "it does not end with its one loss, L"
    elif depths != (config.model.mtp_num_layers or 0):
        wrong = f"it has {depths} depths of multi-token prediction, the model {config.model.mtp_num_layers or 0}"
    elif depths and signs.index("m") < signs.rfind("t"):
        wrong = "it has layers behind multi-token prediction, m"
    elif layers != config.model.num_layers:
        wrong = f"it has {layers} layers, the model {config.model.num_layers}"
    else:
        return
    raise ConfigError(
        f"pipeline_model_parallel_layout does not fit: {wrong}",
        where="parallel.pipeline_model_parallel_layout",
        remedy="write pipeline_model_parallel_size stages, or a multiple, with num_layers t between E and L",
    )


def _layers_in_layout(config: Config, stage: int) -> range:
    check_layout(config)
    before = sum(earlier.count("t") for earlier in config.stage_layout[:stage])
    return range(before, before + config.stage_layout[stage].count("t"))


def _counted_layers(config: Config) -> int:
    parallel = config.parallel
    ends = parallel.account_for_embedding_in_pipeline_split + parallel.account_for_loss_in_pipeline_split
    return config.model.num_layers + ends


def has_final_norm(config: Config, layers: range, *, post_process: bool) -> bool:
    """Whether a model chunk with ``layers`` has the final norm: with multi-token prediction that of the last layer.

    Source: Megatron-Core ``transformer/transformer_block.py::has_final_layernorm_in_this_stage``.
    """
    return post_process if config.model.mtp_num_layers is None else config.model.num_layers - 1 in layers
