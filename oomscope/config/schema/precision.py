"""The section ``precision``: number formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from oomscope.config.schema.section import Section


class PrecisionConfig(Section):
    """Number formats. Neither bf16 nor fp16 means fp32."""

    SOURCE = "Megatron-Core model_parallel_config.py"
    SOURCES: ClassVar[Mapping[str, str]] = {
        "grad_reduce_in_fp32": "Megatron-Core distributed/distributed_data_parallel_config.py",
        "fp8": "Megatron-Core transformer/transformer_config.py",
        "fp8_recipe": "Megatron-Core transformer/transformer_config.py",
        "fp8_param": "Megatron-Core transformer/transformer_config.py",
        "fp4": "Megatron-Core transformer/transformer_config.py",
    }

    bf16: bool = True
    """Parameters and activations in bfloat16, with fp32 master weights."""
    fp16: bool = False
    """Parameters and activations in float16, with fp32 master weights and loss scaling."""
    grad_reduce_in_fp32: bool = True
    """Accumulate and reduce gradients in fp32 main-gradient buffers."""
    fp8: Literal["e4m3", "hybrid"] | None = None
    """Matrix products in fp8; not modelled."""
    fp8_recipe: Literal["delayed", "tensorwise", "mxfp8", "blockwise", "custom"] = "delayed"
    """How fp8 tensors are scaled."""
    fp8_param: bool = False
    """Keep the parameters in fp8."""
    fp4: Literal["e2m1"] | None = None
    """Matrix products in fp4; not modelled."""
    gradient_accumulation_fusion: bool = False
    """Weight gradients are written straight into the main-gradient buffer, with no temporary of the weight's size."""
