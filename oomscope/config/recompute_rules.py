"""Rules of activation recomputation, numbered as in Megatron-Core's own order of checks.

R17 stands with the overlap that it is about, R21 with offloading (checked first upstream), R22 with CUDA graphs.
"""

from __future__ import annotations

from typing import get_args

from oomscope.config.coverage_rules import moe_modules
from oomscope.config.fine_grained_rules import te_version
from oomscope.config.layer_split import most_layers_of_chunk
from oomscope.config.rule import Rule
from oomscope.config.schema import Config, RecomputeModule
from oomscope.errors import ConfigError

_CORE = "Megatron-Core transformer/transformer_config.py"
_ARGS = "Megatron-LM training/arguments.py"
_LAYER = "Megatron-Core transformer/transformer_layer.py"
_FORWARD = "Megatron-Core recompute.py, checkpointed_forward"

_MODULES: tuple[str, ...] = get_args(RecomputeModule)


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


def _unknown_modules(config: Config) -> list[str]:
    return [module for module in config.recompute.recompute_modules or () if module not in _MODULES]


def _discards_under_fp8(config: Config) -> bool:
    return config.precision.fp8 is not None and not {"moe_act", "layernorm"}.isdisjoint(config.recompute_modules)


def _inside_moe(config: Config) -> list[str]:
    return [module for module in ("moe_act", "shared_experts") if module in config.recompute_modules]


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
        id="R8",
        keys=("recompute.recompute_modules", "model.moe_grouped_gemm"),
        applies=lambda config: "moe_act" in config.recompute_modules and not config.model.moe_grouped_gemm,
        summary="Recomputing moe_act needs experts in one grouped product.",
        message="moe_act is recomputed, and moe_grouped_gemm is false",
        remedy="set moe_grouped_gemm, or leave moe_act out",
        source=_CORE,
    ),
    Rule(
        id="R9",
        keys=("recompute.recompute_modules", "model.multi_latent_attention"),
        applies=lambda config: "mla_up_proj" in config.recompute_modules and not config.model.multi_latent_attention,
        summary="Recomputing mla_up_proj needs multi-latent attention.",
        message="mla_up_proj is recomputed, and the model has no multi-latent attention",
        remedy="leave mla_up_proj out",
        source=_CORE,
    ),
    Rule(
        id="R10",
        keys=("recompute.recompute_modules", "model.experimental_attention_variant"),
        applies=lambda config: (
            "gdn_norm_out" in config.recompute_modules
            and config.model.experimental_attention_variant not in {"gdn", "gdn2"}
        ),
        summary="Recomputing gdn_norm_out needs the attention variant gdn or gdn2.",
        message="gdn_norm_out is recomputed, and the model has no gated delta net",
        remedy="leave gdn_norm_out out",
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
        id="R11",
        keys=("recompute.recompute_modules", "model.moe_shared_expert_overlap"),
        applies=lambda config: (
            "shared_experts" in config.recompute_modules
            and config.model.moe_shared_expert_intermediate_size is not None
            and config.model.moe_shared_expert_overlap
        ),
        summary="Shared experts that overlap with the dispatch are not recomputed.",
        message="shared_experts is recomputed, and moe_shared_expert_overlap runs them on a stream of their own",
        remedy="leave shared_experts out, or set moe_shared_expert_overlap to false",
        source=_CORE,
    ),
    Rule(
        id="R12",
        keys=("recompute.recompute_modules", "precision.fp8_recipe"),
        applies=lambda config: _discards_under_fp8(config) and config.precision.fp8_recipe == "delayed",
        summary="With fp8, moe_act and layernorm are not recomputed under delayed scaling.",
        message="delayed scaling does not support the recomputation of moe_act and layernorm",
        remedy="choose another fp8_recipe, or leave them out",
        source=_CORE,
    ),
    Rule(
        id="R13",
        keys=("recompute.recompute_modules", "model.transformer_engine_version"),
        applies=lambda config: _discards_under_fp8(config) and (te_version(config) or (2, 6)) < (2, 6),
        summary="With fp8, recomputing moe_act and layernorm needs Transformer Engine 2.6.",
        message=lambda config: (
            f"Transformer Engine {config.model.transformer_engine_version} cannot recompute moe_act and layernorm "
            "with fp8"
        ),
        remedy="use Transformer Engine 2.6 or later, or leave them out",
        source=_CORE,
    ),
    Rule(
        id="R14a",
        keys=("recompute.moe_layer_recompute", "recompute.recompute_granularity"),
        applies=lambda config: config.recompute.moe_layer_recompute and _full(config),
        summary="moe_layer_recompute, the old name of moe in recompute_modules, excludes full recomputation.",
        message="moe_layer_recompute does not work with full recomputation",
        remedy="remove moe_layer_recompute: full recomputation has the experts in it",
        source=_CORE,
    ),
    Rule(
        id="R14b",
        severity="warning",
        keys=("recompute.moe_layer_recompute",),
        applies=lambda config: config.recompute.moe_layer_recompute and not _full(config),
        summary="moe_layer_recompute is the old name of selective recomputation with moe in recompute_modules.",
        message="moe_layer_recompute is deprecated, and taken for moe in recompute_modules",
        remedy="write recompute_granularity: selective and moe in recompute_modules instead",
        source=_CORE,
    ),
    Rule(
        id="R15a",
        keys=("recompute.recompute_modules", "model.enable_mhc_connections"),
        applies=lambda config: "mhc" in config.recompute_modules and not config.model.enable_mhc_connections,
        summary="Recomputing mhc needs hyper-connections.",
        message="mhc is recomputed, and enable_mhc_connections is false",
        remedy="leave mhc out",
        source=_CORE,
    ),
    Rule(
        id="R15b",
        keys=("recompute.recompute_modules",),
        applies=lambda config: {"mhc", "mlp"} <= set(config.recompute_modules),
        summary="Recomputing mhc and mlp exclude each other.",
        message="mhc and mlp are both recomputed",
        remedy="leave one of them out",
        source=_CORE,
    ),
    Rule(
        id="R15c",
        keys=("recompute.mhc_recompute_layer_num",),
        applies=lambda config: (
            "mhc" in config.recompute_modules and (config.recompute.mhc_recompute_layer_num or 1) < 1
        ),
        summary="mhc_recompute_layer_num is 1 or more.",
        message=lambda config: f"mhc_recompute_layer_num is {config.recompute.mhc_recompute_layer_num}",
        remedy="set it to 1 or more, or null",
        source=_CORE,
    ),
    Rule(
        id="R15d",
        keys=("recompute.recompute_modules", "offload.fine_grained_activation_offloading"),
        applies=lambda config: "mhc" in config.recompute_modules and config.offload.fine_grained_activation_offloading,
        summary="Recomputing mhc excludes fine-grained offloading.",
        message="mhc is recomputed, and fine_grained_activation_offloading is set",
        remedy="remove one of them",
        source=_CORE,
    ),
    Rule(
        id="R15e",
        keys=("model.enable_mhc_connections", "parallel.pipeline_model_parallel_size"),
        applies=lambda config: config.model.enable_mhc_connections and config.parallel.pipeline_model_parallel_size > 1,
        summary="Hyper-connections exclude pipeline parallelism.",
        message="enable_mhc_connections does not work with pipeline parallelism",
        remedy="set pipeline_model_parallel_size to 1",
        source=_CORE,
    ),
    Rule(
        id="R16",
        keys=("model.enable_mhc_connections", "recompute.recompute_granularity"),
        applies=lambda config: config.model.enable_mhc_connections and _full(config),
        summary="Hyper-connections exclude full recomputation.",
        message="enable_mhc_connections does not work with full recomputation",
        remedy="set recompute_granularity to selective, with mhc",
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
        id="R26",
        severity="warning",
        keys=("recompute.recompute_modules",),
        applies=lambda config: (
            "layernorm" in config.recompute_modules
            and config.model.transformer_impl == "transformer_engine"
            and config.model.num_moe_experts is None
            and not config.model.multi_latent_attention
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
        applies=lambda config: "mlp" in config.recompute_modules and config.has_no_dense_layer,
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
        id="R27c",
        severity="warning",
        keys=("recompute.recompute_modules", "model.moe_shared_expert_intermediate_size"),
        applies=lambda config: (
            "shared_experts" in config.recompute_modules
            and config.model.num_moe_experts is not None
            and config.model.moe_shared_expert_intermediate_size is None
        ),
        summary="Recomputing shared_experts acts where there are shared experts.",
        message="shared_experts is recomputed, and the model has none",
        remedy="leave shared_experts out, or set moe_shared_expert_intermediate_size",
        source=_LAYER,
    ),
    Rule(
        id="R27d",
        severity="warning",
        keys=("recompute.recompute_modules",),
        applies=lambda config: "moe" in config.recompute_modules and bool(_inside_moe(config)),
        summary="Recomputing moe has moe_act and shared_experts in it.",
        message=lambda config: f"moe is recomputed, and {', '.join(_inside_moe(config))} inside it is run once more",
        remedy="leave out what lies inside moe: it keeps nothing from forward to backward either way",
        source="Megatron-Core transformer/moe/moe_layer.py",
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
    Rule(
        id="R31",
        severity="warning",
        keys=("recompute.mhc_recompute_layer_num",),
        applies=lambda config: (
            config.recompute.mhc_recompute_layer_num is not None and "mhc" not in config.recompute_modules
        ),
        summary="mhc_recompute_layer_num acts with mhc in recompute_modules alone.",
        message="mhc_recompute_layer_num is ignored, since mhc is not recomputed",
        remedy="remove mhc_recompute_layer_num",
        source=_CORE,
    ),
)
