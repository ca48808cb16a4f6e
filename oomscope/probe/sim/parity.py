"""Makes torch choose on the simulated device what it chooses on CUDA.

Torch asks for the device's type in many places and falls back to slower paths for a device it does not know:
another sequence of allocations. Each override here restores CUDA's choice; ``docs/design/cuda-parity.md`` is the
table of them. All act on the PrivateUse1 keys alone: other devices never see them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import save_on_cpu

from oomscope.probe.sim.backend import DEVICE_TYPE, module
from oomscope.probe.sim.replace import replaced

aten = torch.ops.aten

HALF: Final = (torch.float16, torch.bfloat16)
FLASH_MAX_HEAD_DIM: Final = 256
FLASH_MIN_CAPABILITY: Final = (8, 0)

SEEN_WHOLE: Final = ("silu_backward", "mish_backward", "native_channel_shuffle")
"""Operations with a CUDA kernel of their own that torch decomposes for other devices (native_functions.yaml)."""

_library: torch.library.Library | None = None


def install() -> None:
    """Register the overrides once in this process."""
    global _library  # noqa: PLW0603 - a Library undoes its registrations when it dies
    if _library is not None:
        return
    _library = torch.library.Library("aten", "IMPL")
    _library.impl("scaled_dot_product_attention", scaled_dot_product_attention, "AutogradPrivateUse1")
    _library.impl("scaled_dot_product_attention", scaled_dot_product_attention, "PrivateUse1")
    _library.impl("_fused_rms_norm", FusedRMSNorm.call, "AutogradPrivateUse1")
    _library.impl("_fused_rms_norm", FusedRMSNorm.kernel, "PrivateUse1")
    _library.impl("rms_norm", rms_norm, "AutogradPrivateUse1")
    _library.impl("rms_norm", rms_norm, "PrivateUse1")
    for name in SEEN_WHOLE:
        _library.impl(name, torch.library.fallthrough_kernel, "AutogradPrivateUse1")
    _admit_fakes_to_foreach()


@contextmanager
def installed() -> Iterator[None]:
    """Let ``save_on_cpu(pin_memory=True)`` pin what it saves, inside the block.

    Source: torch/autograd/graph.py: it pins only where the device type that it is told, ``cuda``, is available.
    """
    initialise = save_on_cpu.__init__

    def for_device(hooks: save_on_cpu, pin_memory: bool = False, device_type: str = DEVICE_TYPE) -> None:
        initialise(hooks, pin_memory, device_type)

    with replaced(save_on_cpu, __init__=for_device):
        yield


def _admit_fakes_to_foreach() -> None:
    """Let optimizers and gradient clipping take the foreach and fused paths for the device's tensors.

    Source: torch/optim/optimizer.py, ``_default_to_fused_or_foreach``: the tensor's exact type must be listed.
    """
    from torch.optim import optimizer
    from torch.utils import _foreach_utils

    for supported in (_foreach_utils._foreach_supported_types, optimizer._foreach_supported_types):
        if FakeTensor not in supported:
            supported.append(FakeTensor)


def foreach_norm(
    tensors: Sequence[torch.Tensor], order: float = 2, dtype: torch.dtype | None = None
) -> list[torch.Tensor]:
    """Return the norms as views of one buffer, as CUDA's fused kernel lays them out.

    Source: PyTorch aten/src/ATen/native/cuda/ForeachReduceOp.cu, ``foreach_tensor_norm_cuda``.
    """
    norms = torch.empty(len(tensors), dtype=dtype or tensors[0].dtype, device=tensors[0].device)
    return list(norms.unbind())


KERNELS: Final = {aten._foreach_norm.Scalar: foreach_norm}
"""Operations whose CUDA kernel lays its outputs out otherwise than the shape rule says."""


def attention_backend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    grouped: bool,
    causal: bool = False,
) -> str:
    """Return ``flash``, ``efficient`` or ``math``: the kernel that CUDA's dispatcher would take.

    Source: PyTorch aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, in its order of priority. cuDNN's
    kernel comes after these there, and is not modelled.
    """
    same_width = query.shape[-1] == key.shape[-1] == value.shape[-1]
    allowed = torch.backends.cuda
    if (
        allowed.flash_sdp_enabled()
        and mask is None
        and query.dim() == 4
        and query.dtype in HALF
        and same_width
        and query.shape[-1] <= FLASH_MAX_HEAD_DIM
        and module.capability >= FLASH_MIN_CAPABILITY
        and not (causal and query.shape[-2] != key.shape[-2])
    ):
        return "flash"
    heads_equal = query.dim() == 4 and query.shape[1] == key.shape[1]
    if allowed.mem_efficient_sdp_enabled() and heads_equal and not grouped and query.shape[-1] % 4 == 0:
        return "efficient"
    return "math"


def scaled_dot_product_attention(  # noqa: PLR0917 - the operation's own signature
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Route ``torch.nn.functional.scaled_dot_product_attention`` as CUDA does. Shapes ``[b, a, s, d]``."""
    backend = attention_backend(query, key, value, attn_mask, grouped=enable_gqa, causal=is_causal)
    if backend == "flash":
        width = query.shape[-1]
        factor = scale if scale is not None else width**-0.5
        padded = [_pad_width(tensor, 8) for tensor in (query, key, value)]
        attended: torch.Tensor = aten._scaled_dot_product_flash_attention(
            *padded, dropout_p, is_causal, False, scale=factor
        )[0]
        return attended[..., :width] if attended.shape[-1] != width else attended
    if backend == "efficient":
        bias = _as_bias(attn_mask, query.dtype)
        needs_grad = any(tensor.requires_grad for tensor in (query, key, value))
        efficient: torch.Tensor = aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, needs_grad and torch.is_grad_enabled(), dropout_p, is_causal, scale=scale
        )[0]
        return efficient
    math: torch.Tensor = aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]
    return math


def _pad_width(tensor: torch.Tensor, multiple: int) -> torch.Tensor:
    missing = -tensor.shape[-1] % multiple
    return torch.nn.functional.pad(tensor, (0, missing)) if missing else tensor


def _as_bias(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask.logical_not(), float("-inf"))


def rms_norm(
    source: torch.Tensor, normalized_shape: Sequence[int], weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    """Take the fused kernel for ``torch.nn.functional.rms_norm``, as CUDA does.

    Source: PyTorch aten/src/ATen/native/layer_norm.cpp, ``rms_norm_symint``.
    """
    normalized: torch.Tensor = aten._fused_rms_norm(source, list(normalized_shape), weight, eps)[0]
    return normalized


class FusedRMSNorm(torch.autograd.Function):
    """The allocations of CUDA's fused RMS norm: the output and one fp32 ``rstd`` a row; saved: input and rstd.

    Source: PyTorch aten/src/ATen/native/cuda/layer_norm_kernel.cu, ``_fused_rms_norm_cuda``.
    """

    @staticmethod
    def kernel(
        source: torch.Tensor, normalized_shape: Sequence[int], weight: torch.Tensor | None, eps: float | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the output and rstd, both uninitialised."""
        lead = source.shape[: source.dim() - len(normalized_shape)]
        dtype = torch.float32 if source.dtype in HALF else source.dtype
        output = torch.empty_like(source)
        rstd = torch.empty([*lead, *(1 for _ in normalized_shape)], dtype=dtype, device=source.device)
        return output, rstd

    @staticmethod
    def call(
        source: torch.Tensor,
        normalized_shape: Sequence[int],
        weight: torch.Tensor | None = None,
        eps: float | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run with autograd."""
        outputs: tuple[torch.Tensor, torch.Tensor] = FusedRMSNorm.apply(source, list(normalized_shape), weight, eps)
        return outputs

    @staticmethod
    def forward(
        ctx: Any, source: torch.Tensor, shape: list[int], weight: torch.Tensor | None, eps: float | None
    ) -> Any:
        """Allocate the outputs and save what the backward reads."""
        output, rstd = FusedRMSNorm.kernel(source, shape, weight, eps)
        ctx.save_for_backward(source, rstd, weight)
        ctx.mark_non_differentiable(rstd)
        return output, rstd

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """Allocate the gradients of input and weight."""
        source, _, weight = ctx.saved_tensors
        grad_source = torch.empty_like(source) if ctx.needs_input_grad[0] else None
        grad_weight = torch.empty_like(weight) if weight is not None and ctx.needs_input_grad[2] else None
        return grad_source, None, grad_weight, None
