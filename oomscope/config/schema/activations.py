"""Sections ``recompute``, ``offload`` and ``cuda_graph``: what becomes of activations."""

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
    cpu_offloading_double_buffering: bool = False
    """Accepted and without effect in Transformer Engine v2."""
    cpu_offloading_retain_pinned_cpu_buffers: bool = False
    """Keep the pinned host buffers from one step to the next; no byte of the device depends on it."""
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
    delta_offload_bytes_across_pp_ranks: int = Field(default=0, ge=-(2**63), le=2**63 - 1)
    """Bytes that a pipeline rank keeps on the device more than the rank before it; not modelled above 0."""
    delay_offload_until_cuda_graph: bool = False
    """Wait with the copies until a CUDA graph has been replayed; acts with CUDA graphs alone."""
    fine_grained_offloading_max_inflight_offloads: int | None = Field(default=None, ge=-(2**31), le=2**31 - 1)
    """Copies under way at once; null means any number."""


CudaGraphModule = Literal["attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba"]


class CudaGraphConfig(Section):
    """CUDA graphs (Megatron-Core ``cuda_graph_*``): refused as not modelled.

    What a graph holds (static inputs and outputs, private pools) no rule gives; a measured constant may be added to
    ``device.non_torch_bytes``.
    """

    cuda_graph_impl: Literal["none", "local", "transformer_engine", "full_iteration"] = "none"
    """Who captures what: nothing, layers by Megatron-Core or by Transformer Engine, or the whole iteration."""
    cuda_graph_modules: Annotated[tuple[CudaGraphModule, ...], Field(strict=False)] = ()
    """Parts of a layer that are captured; empty means the whole layer."""
    cuda_graph_scope: Annotated[tuple[str, ...], Field(strict=False)] | None = None
    """Deprecated name of cuda_graph_modules."""
    cuda_graph_warmup_steps: int = Field(default=3, ge=0, le=2**31 - 1)
    """Steps before the capture."""
    nccl_graph_register: bool = True
    """NCCL_GRAPH_REGISTER: let NCCL register the buffers that a graph uses."""
