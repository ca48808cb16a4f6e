"""Rules of activation recomputation, numbered as in Megatron-Core's own order of checks.

Those of single modules have a file of their own; R21 stands with offloading, which is checked first.
"""

from __future__ import annotations

from oomscope.config.rules.layer_split import most_layers_of_chunk
from oomscope.config.rules.recompute_modules import RECOMPUTE_MODULE_RULES
from oomscope.config.rules.rule import Rule
from oomscope.config.schema import Config
from oomscope.errors import ConfigError

_CORE = "Megatron-Core transformer/transformer_config.py"
_ARGS = "Megatron-LM training/arguments.py"
_FORWARD = "Megatron-Core recompute.py, checkpointed_forward"


def _layers_of_chunk(config: Config) -> int:
    """Return the layers that recompute_num_layers counts at most; all of them where they cannot be shared out."""
    try:
        return most_layers_of_chunk(config)
    except ConfigError:
        return config.model.num_layers


def _full(config: Config) -> bool:
    return config.recompute.recompute_granularity == "full"


def _selective(config: Config) -> bool:
    return config.recompute.recompute_granularity == "selective"


def _num_layers_below_one(config: Config) -> bool:
    number = config.recompute.recompute_num_layers
    return _full(config) and number is not None and number < 1


R1 = Rule(
    id="R1",
    keys=("recompute.recompute_granularity",),
    applies=lambda config: config.recompute.recompute_granularity not in (None, "full", "selective"),
    summary="recompute_granularity is full, selective or null.",
    message=lambda config: f"recompute_granularity is {config.recompute.recompute_granularity}",
    remedy="write full, selective or null",
    source=_CORE,
)
R2 = Rule(
    id="R2",
    keys=("recompute.recompute_method",),
    applies=lambda config: (
        config.recompute.recompute_granularity is not None
        and config.recompute.recompute_method not in (None, "block", "uniform")
    ),
    summary="recompute_method is block or uniform.",
    message=lambda config: f"recompute_method is {config.recompute.recompute_method}",
    remedy="write block, uniform or null",
    source=_CORE,
)

RECOMPUTE_RULES: tuple[Rule, ...] = (
    R1,
    R2,
    Rule(
        id="R3",
        keys=("recompute.recompute_method", "recompute.recompute_granularity"),
        applies=lambda config: _full(config) and config.recompute.recompute_method is None,
        summary="Full recomputation needs a recompute_method.",
        message="recompute_granularity is full, and recompute_method is not given",
        remedy="set recompute_method to block or uniform",
        source=_CORE,
    ),
    Rule(
        id="R4",
        keys=("recompute.recompute_num_layers", "recompute.recompute_granularity"),
        applies=lambda config: _full(config) and config.recompute.recompute_num_layers is None,
        summary="Full recomputation needs recompute_num_layers.",
        message="recompute_granularity is full, and recompute_num_layers is not given",
        remedy="set recompute_num_layers to between 1 and the layers of a pipeline stage",
        source=_CORE,
    ),
    Rule(
        id="R5",
        keys=("recompute.recompute_num_layers", "recompute.recompute_granularity"),
        applies=lambda config: _selective(config) and config.recompute.recompute_num_layers is not None,
        summary="Selective recomputation takes no recompute_num_layers.",
        message="recompute_granularity is selective, and recompute_num_layers is given",
        remedy="remove recompute_num_layers",
        source=_CORE,
    ),
    Rule(
        id="R6",
        keys=("recompute.distribute_saved_activations", "parallel.sequence_parallel"),
        applies=lambda config: (
            config.recompute.recompute_granularity is not None
            and config.recompute.distribute_saved_activations
            and config.parallel.sequence_parallel
        ),
        summary="distribute_saved_activations and sequence_parallel exclude each other.",
        message="distribute_saved_activations is set, and sequence_parallel splits the same tensors",
        remedy="remove distribute_saved_activations",
        source=_CORE,
    ),
    *RECOMPUTE_MODULE_RULES,
    Rule(
        id="R19",
        severity="warning",
        keys=("recompute.recompute_method",),
        applies=lambda config: _selective(config) and config.recompute.recompute_method is not None,
        summary="recompute_method has no effect on selective recomputation.",
        message="recompute_method is ignored, since recompute_granularity is selective",
        remedy="remove recompute_method (Megatron-LM's launcher refuses it)",
        source=_ARGS,
    ),
    Rule(
        id="R20a",
        keys=("recompute.distribute_saved_activations", "parallel.tensor_model_parallel_size"),
        applies=lambda config: (
            _full(config)
            and config.recompute.distribute_saved_activations
            and config.parallel.tensor_model_parallel_size == 1
        ),
        summary="distribute_saved_activations needs tensor parallelism.",
        message="distribute_saved_activations has no ranks to distribute over",
        remedy="set parallel.tensor_model_parallel_size above 1, or remove distribute_saved_activations",
        source=_ARGS,
    ),
    Rule(
        id="R20b",
        severity="warning",
        keys=("recompute.distribute_saved_activations", "recompute.recompute_granularity"),
        applies=lambda config: config.recompute.distribute_saved_activations and not _full(config),
        summary="distribute_saved_activations acts on full recomputation alone.",
        message="distribute_saved_activations does nothing: only the checkpoint of whole layers hands it on",
        remedy="remove distribute_saved_activations (Megatron-LM's launcher refuses it, Megatron-Bridge does not)",
        source=f"{_FORWARD}: every other call site passes False; {_ARGS}",
    ),
    Rule(
        id="R23",
        keys=("recompute.recompute_num_layers",),
        applies=lambda config: _num_layers_below_one(config) and config.recompute.recompute_method == "uniform",
        summary="Uniform recomputation needs groups of one layer or more.",
        message=lambda config: (
            f"groups of {config.recompute.recompute_num_layers} layers never come to an end (Megatron-Core hangs)"
        ),
        remedy="set recompute_num_layers to 1 or more",
        source=f"{_FORWARD}: the loop over layers advances by recompute_num_layers, and no bound is checked",
    ),
    Rule(
        id="R24",
        severity="warning",
        keys=("recompute.recompute_num_layers",),
        applies=lambda config: _num_layers_below_one(config) and config.recompute.recompute_method == "block",
        summary="Block recomputation of no layers recomputes nothing.",
        message=lambda config: f"block recomputation of {config.recompute.recompute_num_layers} layers does nothing",
        remedy="set recompute_num_layers to 1 or more, or recompute_granularity to null",
        source=_FORWARD,
    ),
    Rule(
        id="R25",
        severity="warning",
        keys=("recompute.recompute_num_layers",),
        applies=lambda config: (
            _full(config) and (config.recompute.recompute_num_layers or 0) > _layers_of_chunk(config)
        ),
        summary="recompute_num_layers counts the layers of one pipeline stage, or of one of its model chunks.",
        message=lambda config: (
            f"recompute_num_layers is {config.recompute.recompute_num_layers}, "
            f"and a model chunk has {_layers_of_chunk(config)} layers"
        ),
        remedy="set recompute_num_layers to at most the layers of a stage, or of a model chunk",
        source=f"{_FORWARD} (no bound is checked upstream)",
    ),
    Rule(
        id="R28",
        severity="warning",
        keys=("recompute.recompute_modules",),
        applies=lambda config: config.recompute.recompute_modules is not None and not _selective(config),
        summary="recompute_modules acts on selective recomputation alone.",
        message="recompute_modules is ignored, since recompute_granularity is not selective",
        remedy="set recompute_granularity to selective, or remove recompute_modules",
        source=_CORE,
    ),
    Rule(
        id="R29",
        severity="warning",
        keys=("recompute.recompute_method", "recompute.recompute_num_layers"),
        applies=lambda config: (
            config.recompute.recompute_granularity is None
            and (config.recompute.recompute_method is not None or config.recompute.recompute_num_layers is not None)
        ),
        summary="recompute_method and recompute_num_layers act on full recomputation alone.",
        message="nothing is recomputed, since recompute_granularity is null",
        remedy="set recompute_granularity to full, or remove recompute_method and recompute_num_layers",
        source=_CORE,
    ),
    Rule(
        id="R30",
        keys=("recompute.num_microbatches_with_partial_activation_checkpoints",),
        applies=lambda config: config.recompute.num_microbatches_with_partial_activation_checkpoints is not None,
        summary="num_microbatches_with_partial_activation_checkpoints is read by no model of Megatron-Core.",
        message="the schedule hands it to the forward step, which takes it for return_schedule_plan",
        remedy="remove it, and choose recompute_method block with fewer layers",
        source="Megatron-Core pipeline_parallel/schedules.py; Megatron-LM pretrain_gpt.py, forward_step",
    ),
)
