"""What Transformer Engine's kernels hold beside the tensors of the model, by the card that they run on.

Its matrix products have a cuBLAS workspace of their own, and below Hopper its attention is flash-attn's, which wants
the batch first: queries, keys, values and the output are copied.
"""

from __future__ import annotations

import torch

from oomscope.config.schema import Config, FlashKernels
from oomscope.units import KiB, MiB

HOPPER = (9, 0)
GROUPED_GEMM_STREAMS = 4
"""Streams of grouped products, each with a workspace (common/util/multi_stream.cpp, nvte_get_num_compute_streams)."""
OVERLAP_STREAMS = 3
"""Streams of products that overlap with communication (pytorch/cpp_extensions/gemm.py, _NUM_MAX_UB_STREAMS)."""


def capability(device: torch.device) -> tuple[int, int] | None:
    """Return the compute capability of ``device``, None where it is no GPU."""
    if device.type in {"cpu", "meta"}:
        return None
    major, minor = torch.get_device_module(device).get_device_capability(device)
    return int(major), int(minor)


def takes_flash_attn(card: tuple[int, int] | None, kernels: FlashKernels = "auto") -> bool:
    """Whether attention that keeps no scores is flash-attn's on ``card``, and not cuDNN's.

    Of the two cuDNN's is preferred from Hopper on; below, flash-attn's wherever it is installed, as in NVIDIA's
    containers (pytorch/attention/dot_product_attention/utils.py, get_attention_backend). ``attention_backend`` rules
    out the other by NVTE_FLASH_ATTN and NVTE_FUSED_ATTN (Megatron-Core models/common/language_module/
    language_module.py, _set_attention_backend); flash is taken for FlashAttention 2 on every card.
    """
    if card is None or kernels == "fused":
        return False
    return kernels == "flash" or card < HOPPER


def workspaces(config: Config, device: torch.device) -> list[torch.Tensor]:
    """Return the cuBLAS workspaces, which the first products make and which are never freed.

    32 MiB and 1 KiB from Hopper on, else 4 MiB; grouped experts have further ones, one for each of their streams, and
    products that overlap with communication one more, as large as their streams need together
    (pytorch/cpp_extensions/gemm.py, get_cublas_workspace). Routers multiply by Transformer Engine among local layers
    too, unless in fp64 (Megatron-Core transformer/moe/moe_utils.py, RouterGatingLinearFunction).
    """
    card, model = capability(device), config.model
    experts = model.num_moe_experts is not None
    routed = experts and model.moe_router_dtype != "fp64"
    if card is None or not (routed or model.transformer_impl == "transformer_engine"):
        return []
    nbytes = 32 * MiB + KiB if card >= HOPPER else 4 * MiB
    sizes = [nbytes] * (1 + (GROUPED_GEMM_STREAMS if experts and model.moe_grouped_gemm else 0))
    if config.parallel.tp_comm_overlap and config.parallel.tensor_model_parallel_size > 1:
        sizes.append(nbytes * OVERLAP_STREAMS)
    return [torch.empty(size, dtype=torch.uint8, device=device) for size in sizes]
