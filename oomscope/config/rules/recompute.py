"""Rules of activation recomputation, numbered as in Megatron-Core's own order of checks.

R21 stands with offloading, which is checked first. What R1, R2 and R7 check, the schema refuses; R10, R11 and R15 to
R17 are about features that are not modelled.
"""

from __future__ import annotations

from oomscope.config.rules.layer_split import most_layers_of_chunk
from oomscope.config.rules.rule import ARGS, LAYER, TRANSFORMER, Rule, conflict, error, needs, warning
from oomscope.config.schema import Config
from oomscope.errors import ConfigError

_FORWARD = "Megatron-Core recompute.py, checkpointed_forward"


def _beyond_chunk(config: Config) -> int | None:
    """Return the layers of the largest model chunk, where recompute_num_layers exceeds them."""
    try:
        most = most_layers_of_chunk(config)
    except ConfigError:
        most = config.model.num_layers
    return most if _full(config) and (config.recompute.recompute_num_layers or 0) > most else None


def _full(config: Config) -> bool:
    return config.recompute.recompute_granularity == "full"


def _discards_under_fp8(config: Config) -> bool:
    return config.precision.fp8 is not None and not {"moe_act", "layernorm"}.isdisjoint(config.recompute_modules)


def _absent_modules(config: Config) -> list[str]:
    """Return the modules to recompute that no layer of the model has."""
    model = config.model
    absent = {"mlp"} if config.has_no_dense_layer else set()
    if model.num_moe_experts is None:
        absent |= {"moe", "moe_act", "shared_experts"}
        fused = model.transformer_impl == "transformer_engine" and not model.multi_latent_attention
        absent |= {"layernorm"} if fused else set()
    elif model.moe_shared_expert_intermediate_size is None:
        absent.add("shared_experts")
    return [module for module in config.recompute_modules if module in absent]


RECOMPUTE_RULES: tuple[Rule, ...] = (
    needs(
        "R3",
        "recompute.recompute_granularity=full",
        "recompute.recompute_method",
        TRANSFORMER,
        remedy="set recompute_method to block or uniform",
    ),
    needs(
        "R4",
        "recompute.recompute_granularity=full",
        "recompute.recompute_num_layers",
        TRANSFORMER,
        remedy="set recompute_num_layers to between 1 and the layers of a pipeline stage",
    ),
    conflict(
        "R5",
        "recompute.recompute_granularity=selective",
        "recompute.recompute_num_layers",
        TRANSFORMER,
        remedy="remove recompute_num_layers",
    ),
    error(
        id="R6",
        keys="recompute.distribute_saved_activations parallel.sequence_parallel",
        applies=lambda c: (
            c.recompute.recompute_granularity is not None
            and c.recompute.distribute_saved_activations
            and c.parallel.sequence_parallel
        ),
        message="distribute_saved_activations is set, and sequence_parallel splits the same tensors",
        remedy="remove distribute_saved_activations",
        source=TRANSFORMER,
    ),
    error(
        id="R8",
        keys="recompute.recompute_modules model.moe_grouped_gemm",
        applies=lambda c: "moe_act" in c.recompute_modules and not c.model.moe_grouped_gemm,
        message="moe_act is recomputed, and moe_grouped_gemm is false",
        remedy="set moe_grouped_gemm, or leave moe_act out",
        source=TRANSFORMER,
    ),
    error(
        id="R9",
        keys="recompute.recompute_modules model.multi_latent_attention",
        applies=lambda c: "mla_up_proj" in c.recompute_modules and not c.model.multi_latent_attention,
        message="mla_up_proj is recomputed, and the model has no multi-latent attention",
        remedy="leave mla_up_proj out",
        source=TRANSFORMER,
    ),
    warning(
        id="R18",
        keys="recompute.recompute_modules recompute.recompute_granularity",
        applies=lambda c: "core_attn" in c.recompute_modules and c.attention_backend == "flash",
        message="core_attn is recomputed: flash attention keeps no attention matrix to be saved, "
        "and the checkpoint keeps the QKV projection",
        remedy="leave core_attn out, or recompute mlp or layernorm",
        source=TRANSFORMER,
    ),
    error(
        id="R12",
        keys="recompute.recompute_modules precision.fp8_recipe",
        applies=lambda c: _discards_under_fp8(c) and c.precision.fp8_recipe == "delayed",
        message="delayed scaling does not support the recomputation of moe_act and layernorm",
        remedy="choose another fp8_recipe, or leave them out",
        source=TRANSFORMER,
    ),
    error(
        id="R13",
        keys="recompute.recompute_modules model.transformer_engine_version",
        applies=lambda c: _discards_under_fp8(c) and (c.te_version or (2, 6)) < (2, 6),
        message="Transformer Engine {c.model.transformer_engine_version} cannot recompute moe_act and layernorm in fp8",
        remedy="use Transformer Engine 2.6 or later, or leave them out",
        source=TRANSFORMER,
    ),
    warning(
        id="R27",
        keys="recompute.recompute_modules model.num_moe_experts model.transformer_impl",
        applies=_absent_modules,
        message="recomputing {found} does nothing: no layer of this model has it",
        remedy="leave it out (layernorm: or set model.transformer_impl to local)",
        source=f"{LAYER}; models/gpt/gpt_layer_specs.py: transformer_engine fuses the norms of dense layers",
    ),
    warning(
        id="R27d",
        keys="recompute.recompute_modules",
        applies=lambda c: (
            "moe" in c.recompute_modules and [m for m in ("moe_act", "shared_experts") if m in c.recompute_modules]
        ),
        message="moe is recomputed, and {found} inside it is run once more",
        remedy="leave out what lies inside moe: it keeps nothing from forward to backward either way",
        source="Megatron-Core transformer/moe/moe_layer.py",
    ),
    error(
        id="R20a",
        keys="recompute.distribute_saved_activations parallel.tensor_model_parallel_size",
        applies=lambda c: (
            _full(c) and c.recompute.distribute_saved_activations and c.parallel.tensor_model_parallel_size == 1
        ),
        message="distribute_saved_activations has no ranks to distribute over",
        remedy="set parallel.tensor_model_parallel_size above 1, or remove distribute_saved_activations",
        source=ARGS,
    ),
    error(
        id="R23",
        keys="recompute.recompute_num_layers",
        applies=lambda c: (
            _full(c)
            and c.recompute.recompute_method == "uniform"
            and c.recompute.recompute_num_layers is not None
            and c.recompute.recompute_num_layers < 1
        ),
        message="groups of {c.recompute.recompute_num_layers} layers never come to an end (Megatron-Core hangs)",
        remedy="set recompute_num_layers to 1 or more",
        source=f"{_FORWARD}: the loop over layers advances by recompute_num_layers, and no bound is checked",
    ),
    warning(
        id="R25",
        keys="recompute.recompute_num_layers",
        applies=_beyond_chunk,
        message="recompute_num_layers is {c.recompute.recompute_num_layers}, and a model chunk has {found} layers",
        remedy="set recompute_num_layers to at most the layers of a stage, or of a model chunk",
        source=f"{_FORWARD} (no bound is checked upstream)",
    ),
)
