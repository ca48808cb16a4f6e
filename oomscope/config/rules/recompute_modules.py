"""Rules of what selective recomputation names, and of hyper-connections, numbered as in Megatron-Core's own order.

R17 stands with the overlap that it is about.
"""

from __future__ import annotations

from typing import get_args

from oomscope.config.rules.fine_grained_offload import te_version
from oomscope.config.rules.rule import Rule
from oomscope.config.rules.unmodelled import moe_modules
from oomscope.config.schema import Config, RecomputeModule

_CORE = "Megatron-Core transformer/transformer_config.py"
_LAYER = "Megatron-Core transformer/transformer_layer.py"

_MODULES: tuple[str, ...] = get_args(RecomputeModule)


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


R7 = Rule(
    id="R7",
    keys=("recompute.recompute_modules",),
    applies=lambda config: _selective(config) and bool(_unknown_modules(config)),
    summary="recompute_modules are names of modules that can be recomputed.",
    message=lambda config: f"recompute_modules has no {', '.join(_unknown_modules(config))}",
    remedy=f"modules are {', '.join(_MODULES)}",
    source=_CORE,
)

RECOMPUTE_MODULE_RULES: tuple[Rule, ...] = (
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
