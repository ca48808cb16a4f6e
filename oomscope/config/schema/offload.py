"""The section ``offload``: activations that wait on the host."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from oomscope.config.schema.section import Section

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
    """Offload to host memory (Megatron-Core ``cpu_offloading*``, fine-grained offload)."""

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
