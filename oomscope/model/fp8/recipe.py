"""How Transformer Engine scales what it multiplies in fp8, and what a matrix then takes, by recipe and card.

A product reads fp8 along one direction only. One scale a tensor (``delayed``, ``tensorwise``) lets Blackwell read one
copy in both directions, while Hopper needs a transposed second copy (pytorch/utils.py, is_non_tn_fp8_gemm_supported;
pytorch/csrc/quantizer.cpp, create_tensor). Scales of blocks of 1 x 128 and 128 x 128 (``blockwise``) or 1 x 32 elements
(``mxfp8``) differ by direction, and so do the two copies, on every card.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from oomscope.config.schema import Config
from oomscope.errors import ConfigError
from oomscope.model.base.device import capability, computes

Scaling = Literal["delayed", "tensorwise", "blockwise", "mxfp8"]

_FIRST_CARD: dict[str, tuple[int, int]] = {
    "delayed": (8, 9),
    "tensorwise": (8, 9),
    "blockwise": (9, 0),
    "mxfp8": (10, 0),
}
"""The first compute capability that has a recipe (Transformer Engine pytorch/quantization.py, check_recipe_support)."""
_BLACKWELL = (10, 0)
_BLOCK = 128
_MX_BLOCK = 32


@dataclass(frozen=True, kw_only=True)
class Fp8Recipe:
    """A recipe on a card."""

    scaling: Scaling
    forward_dtype: torch.dtype = torch.float8_e4m3fn
    """Dtype of inputs and weights."""
    backward_dtype: torch.dtype = torch.float8_e5m2
    """Dtype of gradients: e5m2 with ``fp8: hybrid``."""
    one_copy: bool = False
    """Whether a copy serves products in both directions."""
    history: int = 1
    """Largest values remembered of each tensor under delayed scaling (``fp8_amax_history_len``)."""
    caches_weights: bool = True
    """Whether a weight's copies are made at the first microbatch and kept."""

    @property
    def per_tensor(self) -> bool:
        """Whether a tensor has one scale. Such tensors are gathered row by row only: the transpose of a gathered
        tensor is not the gathered transpose (pytorch/distributed.py, _all_gather_fp8).
        """
        return self.scaling in ("delayed", "tensorwise")

    def scale_shape(self, shape: tuple[int, int], *, columnwise: bool, weight: bool) -> tuple[int, ...]:
        """Return the shape of the scales of a matrix of ``shape``, padded as cuBLAS reads them.

        Source: pytorch/tensor/float8_blockwise_tensor.py and mxfp8_tensor.py, get_scale_shape.
        """
        if self.per_tensor:
            return (1,)
        rows, columns = shape
        if self.scaling == "mxfp8":
            if columnwise:
                return _multiple(_blocks(rows, _MX_BLOCK), 4), _multiple(columns, 128)
            return _multiple(rows, 128), _multiple(_blocks(columns, _MX_BLOCK), 4)
        across, along = (rows, columns) if columnwise else (columns, rows)
        if weight:
            across, along = along, across
            return _blocks(across, _BLOCK), _multiple(_blocks(along, _BLOCK), 4)
        return _blocks(across, _BLOCK), _multiple(along, 4)

    @property
    def scale_dtype(self) -> torch.dtype:
        """Return the dtype of a scale: an exponent of 8 bits under mxfp8, else fp32."""
        return torch.uint8 if self.scaling == "mxfp8" else torch.float32


def fp8_recipe(config: Config, device: torch.device) -> Fp8Recipe | None:
    """Return the recipe of a configuration on ``device``, None without fp8 or without Transformer Engine's layers.

    Raises:
        ConfigError: the card has no such products, or is no virtual one: the bundled products in fp8 compute nothing.
    """
    precision = config.precision
    has_layers = config.model.transformer_impl == "transformer_engine"
    if precision.fp8 is None or precision.fp8_recipe == "custom" or not has_layers:
        return None
    card = capability(device)
    if device.type != "meta" and computes(device):
        raise ConfigError(
            "fp8 products need Transformer Engine; the bundled model runs them only on a virtual card",
            where="precision.fp8",
            remedy="probe with --backend virtual, or measure your own training code with a harness (docs/probe.md)",
        )
    if card is not None and card < _FIRST_CARD[precision.fp8_recipe]:
        raise ConfigError(
            f"fp8_recipe {precision.fp8_recipe} needs compute capability "
            f"{'.'.join(map(str, _FIRST_CARD[precision.fp8_recipe]))}, and the card has {card[0]}.{card[1]}",
            where="precision.fp8_recipe",
            remedy="choose another recipe, or a card that has it (--gpu)",
        )
    is_per_tensor = precision.fp8_recipe in ("delayed", "tensorwise")
    return Fp8Recipe(
        scaling=precision.fp8_recipe,
        backward_dtype=torch.float8_e5m2 if precision.fp8 == "hybrid" else torch.float8_e4m3fn,
        one_copy=is_per_tensor and card is not None and card >= _BLACKWELL,
        history=precision.fp8_amax_history_len,
        caches_weights=not precision.disable_parameter_transpose_cache,
    )


def is_bf16_layer(config: Config, layer: int) -> bool:
    """Whether ``layer`` of the whole model stays in 16 bits (Megatron-Core fp8_utils.py, is_first_last_bf16_layer)."""
    precision = config.precision
    if not precision.first_last_layers_bf16:
        return False
    last = config.model.num_layers - precision.num_layers_at_end_in_bf16
    return layer < precision.num_layers_at_start_in_bf16 or layer >= last


def _blocks(size: int, block: int) -> int:
    return -(-size // block)


def _multiple(size: int, of: int) -> int:
    return _blocks(size, of) * of
