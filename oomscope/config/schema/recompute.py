"""The section ``recompute``: activations that are computed twice in place of being kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from oomscope.config.schema.section import Count, Section

RecomputeModule = Literal[
    "core_attn",
    "mlp",
    "layernorm",
    "moe",
    "moe_act",
    "shared_experts",
    "mla_up_proj",
    "gdn_norm_out",
    "gdp_in_proj",
    "gdp_qkv",
    "mhc",
]


class RecomputeConfig(Section):
    """Activation recomputation (Megatron-Core ``recompute_*``)."""

    recompute_granularity: Literal["full", "selective"] | None = None
    """full: whole layers; selective: the modules named in recompute_modules; null: none."""
    recompute_method: Literal["uniform", "block"] | None = None
    """With full: uniform checkpoints groups of recompute_num_layers layers, block the first recompute_num_layers."""
    recompute_num_layers: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = None
    """Layers of a group (uniform) or layers recomputed (block), per pipeline stage (per virtual stage with VPP)."""
    recompute_modules: Annotated[tuple[RecomputeModule, ...], Field(strict=False)] | None = None
    """With selective: what is recomputed; null means [core_attn]; an empty list recomputes nothing."""
    distribute_saved_activations: bool = False
    """With full: each TP rank keeps 1/TP of every checkpointed hidden state."""
    moe_layer_recompute: bool = False
    """Deprecated name of selective recomputation with moe in recompute_modules, which it sets; refused with full."""
    mhc_recompute_layer_num: int | None = Field(default=None, ge=-(2**31), le=2**31 - 1)
    """With mhc in recompute_modules: layers whose hyper-connections are recomputed together; null means all."""
    num_microbatches_with_partial_activation_checkpoints: Count | None = None
    """Refused: no model of Megatron-Core reads it (model_parallel_config.py declares it)."""

    @model_validator(mode="before")
    @classmethod
    def _take_old_name(cls, values: Any) -> Any:
        """Make of moe_layer_recompute what TransformerConfig.__post_init__ makes of it."""
        if not isinstance(values, Mapping) or values.get("moe_layer_recompute") is not True:
            return values
        modules = values.get("recompute_modules")
        modules = ["core_attn"] if modules is None else modules
        if values.get("recompute_granularity") not in {None, "selective"} or not isinstance(modules, list | tuple):
            return values
        together = [*modules, *(["moe"] if "moe" not in modules else [])]
        return {**values, "recompute_granularity": "selective", "recompute_modules": together}
