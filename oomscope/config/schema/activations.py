"""Sections ``recompute`` and ``offload``: what becomes of activations."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from oomscope.config.schema.section import Section

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


OffloadModule = Literal[
    "core_attn",
    "attn_proj",
    "expert_fc1",
    "moe_act",
    "fused_group_mlp",
    "attn_norm",
    "mlp_norm",
    "qkv_linear",
    "gdp_qkv",
]


class OffloadConfig(Section):
    """Offload to host memory (Megatron-Core ``ModelParallelConfig`` and ``TransformerConfig``, Transformer Engine)."""

    cpu_offloading: bool = False
    """Offload the saved activations of the first cpu_offloading_num_layers layers."""
    cpu_offloading_num_layers: int = Field(default=0, ge=-(2**31), le=2**31 - 1)
    """Layers whose activations go to the host."""
    cpu_offloading_activations: bool = True
    """Offload activations."""
    cpu_offloading_weights: bool = False
    """Accepted and without effect in Transformer Engine v2."""
    nvte_cpu_offload_v1: bool = False
    """NVTE_CPU_OFFLOAD_V1: Transformer Engine's first implementation of layer offloading; not modelled."""
    fine_grained_activation_offloading: bool = False
    """Offload the saved activations of offload_modules."""
    offload_modules: Annotated[tuple[OffloadModule, ...], Field(strict=False)] = ()
    """Modules whose saved activations are offloaded."""
    min_offloaded_tensor_size: int = Field(default=1024 * 1024, ge=0, le=2**63 - 1)
    """Tensors with fewer elements stay on the device."""
    activation_offload_fraction: float = Field(default=1.0, ge=0, le=1)
    """Share of the groups that is offloaded."""
