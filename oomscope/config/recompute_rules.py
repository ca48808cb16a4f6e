"""Rules of activation recomputation, numbered as in Megatron-Core's own order of checks.

Rules that a configuration of this schema cannot break are absent: most of R8 to R17 concern keys that it does not have.
"""

from __future__ import annotations

from typing import get_args

from oomscope.config.coverage_rules import moe_modules
from oomscope.config.rule import Rule
from oomscope.config.schema import Config, RecomputeModule

_CORE = "Megatron-Core transformer/transformer_config.py"
_ARGS = "Megatron-LM training/arguments.py"
_LAYER = "Megatron-Core transformer/transformer_layer.py"
_FORWARD = "Megatron-Core recompute.py, checkpointed_forward"

_MODULES: tuple[str, ...] = get_args(RecomputeModule)


def _layers_of_stage(config: Config) -> int:
    return config.model.num_layers // config.parallel.pipeline_model_parallel_size


def _full(config: Config) -> bool:
    return config.recompute.recompute_granularity == "full"


def _selective(config: Config) -> bool:
    return config.recompute.recompute_granularity == "selective"


def _unknown_modules(config: Config) -> list[str]:
    return [module for module in config.recompute.recompute_modules or () if module not in _MODULES]


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
R7 = Rule(
    id="R7",
    keys=("recompute.recompute_modules",),
    applies=lambda config: _selective(config) and bool(_unknown_modules(config)),
    summary="recompute_modules are names of modules that can be recomputed.",
    message=lambda config: f"recompute_modules has no {', '.join(_unknown_modules(config))}",
    remedy=f"modules are {', '.join(_MODULES)}",
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
    R7,
    Rule(
        id="R9",
        keys=("recompute.recompute_modules",),
        applies=lambda config: "mla_up_proj" in config.recompute_modules,
        summary="Recomputing mla_up_proj needs multi-latent attention, which this schema does not have.",
        message="mla_up_proj is recomputed, and the model has no multi-latent attention",
        remedy="leave mla_up_proj out",
        source=_CORE,
    ),
    Rule(
        id="R18",
        severity="warning",
        keys=("recompute.recompute_modules", "recompute.recompute_granularity"),
        applies=lambda config: "core_attn" in config.recompute_modules and config.attention_backend == "flash",
        summary="Recomputing core_attn saves next to nothing with flash attention.",
        message="core_attn is recomputed, and flash attention keeps no attention matrix to be saved",
        remedy="leave core_attn out, or recompute mlp or layernorm",
        source=_CORE,
    ),
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
            config.recompute.distribute_saved_activations and config.parallel.tensor_model_parallel_size == 1
        ),
        summary="distribute_saved_activations needs tensor parallelism.",
        message="distribute_saved_activations has no ranks to distribute over",
        remedy="set parallel.tensor_model_parallel_size above 1, or remove distribute_saved_activations",
        source=_ARGS,
    ),
    Rule(
        id="R20b",
        keys=("recompute.distribute_saved_activations", "recompute.recompute_granularity"),
        applies=lambda config: config.recompute.distribute_saved_activations and not _full(config),
        summary="distribute_saved_activations acts on full recomputation alone.",
        message="distribute_saved_activations does nothing unless recompute_granularity is full",
        remedy="remove distribute_saved_activations",
        source=f"{_ARGS}; under selective every call site of Megatron-Core passes False",
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
        source=f"{_FORWARD} (no bound is checked upstream)",
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
            _full(config) and (config.recompute.recompute_num_layers or 0) > _layers_of_stage(config)
        ),
        summary="recompute_num_layers counts the layers of one pipeline stage.",
        message=lambda config: (
            f"recompute_num_layers is {config.recompute.recompute_num_layers}, "
            f"and a pipeline stage has {_layers_of_stage(config)} layers"
        ),
        remedy="set recompute_num_layers to at most the layers of a stage",
        source=f"{_FORWARD} (no bound is checked upstream)",
    ),
    Rule(
        id="R26",
        severity="warning",
        keys=("recompute.recompute_modules",),
        applies=lambda config: (
            "layernorm" in config.recompute_modules
            and config.model.transformer_impl == "transformer_engine"
            and config.model.num_moe_experts is None
        ),
        summary="Recomputing layernorm has nothing to act on in a dense model of the Transformer Engine layers.",
        message="layernorm is recomputed, and transformer_engine has fused the norms into the linears",
        remedy="leave layernorm out, or set model.transformer_impl to local",
        source="Megatron-Core models/gpt/gpt_layer_specs.py: both norms are IdentityOp",
    ),
    Rule(
        id="R27a",
        severity="warning",
        keys=("recompute.recompute_modules",),
        applies=lambda config: "mlp" in config.recompute_modules and config.model.num_moe_experts is not None,
        summary="Recomputing mlp acts on dense layers alone.",
        message="mlp is recomputed, and every layer of this model is an MoE layer",
        remedy="leave mlp out",
        source=_LAYER,
    ),
    Rule(
        id="R27b",
        severity="warning",
        keys=("recompute.recompute_modules",),
        applies=lambda config: config.model.num_moe_experts is None and bool(moe_modules(config)),
        summary="Recomputing moe, moe_act and shared_experts acts on MoE layers alone.",
        message=lambda config: f"recomputing {', '.join(moe_modules(config))} does nothing in a dense model",
        remedy="leave them out",
        source=_LAYER,
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
)
