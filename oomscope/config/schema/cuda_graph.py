"""The section ``cuda_graph``: what is captured in CUDA graphs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from oomscope.config.schema.section import Section

CudaGraphModule = Literal["attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba"]


class CudaGraphConfig(Section):
    """CUDA graphs (Megatron-Core ``cuda_graph_*``): checked for what they exclude, and then refused as not modelled.

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
