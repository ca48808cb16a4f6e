"""Autocast with CUDA's lists of operations and its weight cache, for the simulated device.

For a device it does not know torch has no autocast kernels at all. Here every operation of CUDA's lists gets one
that casts its arguments and goes on below autocast; casts of leaf weights are kept until the outermost
``torch.autocast`` ends, as CUDA's cache keeps them (they occupy memory meanwhile).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import library
from torch.utils._pytree import tree_map

from oomscope.probe.sim.backend import DEVICE_TYPE

LOWER_PRECISION: Final = """
    _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input conv_transpose3d.input
    convolution prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm
    chain_matmul linalg_multi_dot scaled_dot_product_attention _scaled_dot_product_flash_attention
"""
"""Cast to autocast's type. Source: PyTorch aten/src/ATen/autocast_mode.h, AT_FORALL_LOWER_PRECISION_FP."""

FP32: Final = """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
    pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm cosine_similarity
    poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss
    smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss
    triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp
"""
"""Cast to fp32. Source: the same file, AT_FORALL_FP32 (interpolation left out: it allocates alike)."""

FP32_RESULT: Final = """
    prod prod.dim_int softmax.int log_softmax.int cumprod cumsum sum sum.dim_IntList
"""
"""Compute in fp32 unless a type is given. Source: the same file, AT_FORALL_FP32_SET_OPT_DTYPE."""

PROMOTE: Final = """
    addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add
"""
"""Cast to the widest floating type among the arguments. Source: the same file, AT_FORALL_PROMOTE."""

_libraries: list[library.Library] = []
_AUTOCAST_KEYS = torch._C.DispatchKeySet(torch._C._dispatch_key_parse("AutocastPrivateUse1"))
_cache: dict[int, tuple[weakref.ref[torch.Tensor], torch.dtype, torch.Tensor]] = {}


def install() -> None:
    """Register the kernels once in this process."""
    if _libraries:
        return
    fallback = library.Library("_", "IMPL")
    fallback.fallback(library.fallthrough_kernel, "AutocastPrivateUse1")
    kernels = library.Library("aten", "IMPL")
    for names, policy in (
        (LOWER_PRECISION, _lower_precision),
        (FP32, _fp32),
        (FP32_RESULT, _fp32_result),
        (PROMOTE, _promote),
    ):
        for name in names.split():
            kernels.impl(name, policy(_overload(name)), "AutocastPrivateUse1")
    _libraries.extend((fallback, kernels))
    _clear_with_torch()


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _clear_with_torch() -> None:
    clear = torch.clear_autocast_cache

    def clear_both() -> None:
        _cache.clear()
        clear()

    torch.clear_autocast_cache = clear_both


def cached_cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return ``tensor`` as ``dtype``; a leaf fp32 weight is cast once and kept.

    Source: PyTorch aten/src/ATen/autocast_mode.cpp, ``cached_cast``.
    """
    if tensor.dtype is dtype:
        return tensor
    cacheable = (
        torch.is_autocast_cache_enabled()
        and tensor.requires_grad
        and tensor.is_leaf
        and tensor.dtype is torch.float32
        and tensor._base is None
    )
    if not cacheable:
        return tensor.to(dtype)
    entry = _cache.get(id(tensor))
    if entry is not None and entry[0]() is tensor and entry[1] is dtype:
        return entry[2]
    cast = tensor.to(dtype)
    _cache[id(tensor)] = (weakref.ref(tensor), dtype, cast)
    return cast


def _castable(value: object) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.device.type == DEVICE_TYPE
        and value.is_floating_point()
        and value.dtype is not torch.float64
    )


def _cast_all(tree: Any, dtype: torch.dtype) -> Any:
    return tree_map(lambda value: cached_cast(value, dtype) if _castable(value) else value, tree)


def _below(op: Any, args: Any, kwargs: Any) -> Any:
    with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_KEYS):
        return op(*args, **kwargs)


def _lower_precision(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype(DEVICE_TYPE)
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_KEYS):
            return op(*_cast_all(args, dtype), **_cast_all(kwargs, dtype))

    return kernel


def _fp32(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_KEYS):
            return op(*_cast_all(args, torch.float32), **_cast_all(kwargs, torch.float32))

    return kernel


def _fp32_result(op: Any) -> Callable[..., Any]:
    place = next(i for i, argument in enumerate(op._schema.arguments) if argument.name == "dtype")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        source = args[0]
        given = args[place] if len(args) > place else kwargs.get("dtype")
        if _castable(source) and given is None and source.dtype is not torch.float32:
            args, kwargs = args[:place], {**kwargs, "dtype": torch.float32}
        return _below(op, args, kwargs)

    return kernel


def _promote(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        found = [value for value in args if isinstance(value, torch.Tensor) and _castable(value)]
        widest = torch.float32 if any(value.dtype is torch.float32 for value in found) else None
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_KEYS):
            return op(*(_cast_all(args, widest) if widest else args), **kwargs)

    return kernel
