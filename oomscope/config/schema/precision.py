"""The section ``precision``: number formats."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from oomscope.config.schema.section import Section


class PrecisionConfig(Section):
    """Number formats. Neither bf16 nor fp16 means fp32."""

    bf16: bool = True
    """Parameters and activations in bfloat16, with fp32 master weights."""
    fp16: bool = False
    """Parameters and activations in float16, with fp32 master weights and loss scaling."""
    grad_reduce_in_fp32: bool = True
    """Accumulate and reduce gradients in fp32 main-gradient buffers."""
    fp8: Literal["e4m3", "hybrid"] | None = None
    """The matrix products of the layers in fp8: all in e4m3, or gradients in e5m2 (hybrid)."""
    fp8_recipe: Literal["delayed", "tensorwise", "mxfp8", "blockwise", "custom"] = "delayed"
    """How fp8 tensors are scaled: by one factor that follows earlier steps, by one of their own, or by blocks."""
    fp8_param: bool = False
    """Keep the layers' weights in fp8 alone, and gather them so; Megatron-LM calls it fp8_param_gather."""
    fp8_margin: int = 0
    """Powers of two that scaling factors stay below the largest value."""
    fp8_amax_history_len: int = Field(default=1, ge=1, le=2**20)
    """Largest values remembered of each tensor under delayed scaling."""
    fp8_amax_compute_algo: Literal["most_recent", "max"] = "most_recent"
    """Which of the remembered values makes the factor."""
    fp8_wgrad: bool = True
    """Weight gradients in fp8 too; false is not modelled."""
    fp8_dot_product_attention: bool = False
    """Attention in fp8; not modelled."""
    fp8_multi_head_attention: bool = False
    """Attention in fp8 whose Q, K and V come in fp8; not modelled."""
    first_last_layers_bf16: bool = False
    """Leave some layers at both ends of the model in 16 bits."""
    num_layers_at_start_in_bf16: int = Field(default=1, ge=0)
    """How many of the first, with first_last_layers_bf16."""
    num_layers_at_end_in_bf16: int = Field(default=1, ge=0)
    """How many of the last."""
    disable_parameter_transpose_cache: bool = False
    """Quantise weights in every microbatch and keep no copy of them from one to the next."""
    fp4: Literal["e2m1"] | None = None
    """Matrix products in fp4; not modelled."""
    gradient_accumulation_fusion: bool = False
    """Weight gradients are written straight into the main-gradient buffer, with no temporary of the weight's size."""
