"""What some operations of the card compute, in operations that the host has.

Each function takes the arguments of an operation of aten, on the host, and returns its results: None for one that
nothing reads but the operation's own backward, as it stands here. Attention leaves out dropout.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch

aten: Final = torch.ops.aten
_NARROW: Final = (torch.bfloat16, torch.float16)


class _Attention(NamedTuple):
    """Arguments of attention: queries, keys and values of batch × heads × length × width."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    bias: torch.Tensor | None
    is_causal: bool
    scale: float | None

    @property
    def factor(self) -> float:
        """What scores are multiplied by."""
        return 1 / math.sqrt(self.query.shape[-1]) if self.scale is None else self.scale

    def repeated(self, of_keys: torch.Tensor) -> torch.Tensor:
        """Return keys or values for each head of the queries, float32."""
        repeats = self.query.shape[1] // of_keys.shape[1]
        return of_keys.float().repeat_interleave(repeats, 1) if repeats > 1 else of_keys.float()

    def scores(self) -> torch.Tensor:
        """Return the scores, batch × heads × queries × keys, float32."""
        scores = self.query.float() @ self.repeated(self.key).transpose(-2, -1) * self.factor
        if self.bias is not None:
            scores = scores + self.bias
        if self.is_causal:
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device="cpu").tril().logical_not()
            scores = scores.masked_fill(hidden, -math.inf)
        return scores

    def result(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the result, and the logarithms of the sums of the exponentials of the scores."""
        scores = self.scores()
        out = torch.nan_to_num(scores.softmax(-1)) @ self.repeated(self.value)
        return out.to(self.query.dtype), scores.logsumexp(-1)

    def gradients(self, of_result: torch.Tensor) -> tuple[Any, Any, Any, Any]:
        """Return the gradients of queries, keys, values and bias."""
        chances, of_result = torch.nan_to_num(self.scores().softmax(-1)), of_result.float()
        by_chance = of_result @ self.repeated(self.value).transpose(-2, -1)
        by_score = chances * (by_chance - (by_chance * chances).sum(-1, keepdim=True))
        of_query = by_score @ self.repeated(self.key) * self.factor
        of_key = by_score.transpose(-2, -1) @ self.query.float() * self.factor
        of_value = chances.transpose(-2, -1) @ of_result
        heads = self.key.shape[1]
        of_key, of_value = (each.unflatten(1, (heads, -1)).sum(2) for each in (of_key, of_value))
        return of_query, of_key, of_value, by_score.sum_to_size(self.bias.shape) if self.bias is not None else None


def _flash(
    query: Any, key: Any, value: Any, dropout_p: float = 0.0, is_causal: bool = False, *how: Any, scale: Any = None
) -> Any:
    return (*_Attention(query, key, value, None, is_causal, scale).result(), *[None] * 7)


def _flash_backward(grad: Any, query: Any, key: Any, value: Any, *how: Any, scale: Any = None) -> Any:
    is_causal = how[7]
    return _Attention(query, key, value, None, is_causal, scale).gradients(grad)[:3]


def _with_bias(
    query: Any,
    key: Any,
    value: Any,
    bias: Any,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *how: Any,
    scale: Any = None,
    shaped: Callable[[torch.Tensor], torch.Tensor],
    further: int,
) -> Any:
    """Return the result, the logarithms of the sums in the shape of the kernel's, and what else it returns."""
    out, sums = _Attention(query, key, value, bias, is_causal, scale).result()
    return (out, shaped(sums) if compute_log_sumexp else None, *[None] * further)


def _efficient_backward(grad: Any, query: Any, key: Any, value: Any, bias: Any, *how: Any, scale: Any = None) -> Any:
    is_causal = how[6] if len(how) > 6 else False
    return _Attention(query, key, value, bias, is_causal, scale).gradients(grad)


def _cudnn_attention_backward(
    grad: Any,
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    logsumexp: Any,
    seed: Any,
    offset: Any,
    bias: Any,
    *how: Any,
    scale: Any = None,
) -> Any:
    is_causal = how[5]
    return _Attention(query, key, value, bias, is_causal, scale).gradients(grad)[:3]


def _convolution(x: Any, weight: Any, padding: Any, stride: Any, dilation: Any, groups: int, *how: Any) -> Any:
    return aten.convolution(x, weight, None, stride, padding, dilation, False, [0] * len(stride), groups)


def _transposed_convolution(
    x: Any, weight: Any, padding: Any, output_padding: Any, stride: Any, dilation: Any, groups: int, *how: Any
) -> Any:
    return aten.convolution(x, weight, None, stride, padding, dilation, True, output_padding, groups)


def _depthwise_convolution(
    x: Any, weight: Any, kernel_size: Any, bias: Any, stride: Any, padding: Any, dilation: Any
) -> Any:
    groups = x.shape[1]
    return aten.convolution(x, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups)


def _batch_norm(*args: Any) -> Any:
    return (*_wide("native_batch_norm")(*args), None)


def _batch_norm_backward(
    x: Any, grad: Any, weight: Any, mean: Any, var: Any, save_mean: Any, save_var: Any, eps: float, reserve: Any
) -> Any:
    backward = _wide("native_batch_norm_backward")
    return backward(grad, x, weight, mean, var, save_mean, save_var, True, eps, [True] * 3)


def _rms_norm_backward(grad: Any, x: Any, shape: Any, rstd: Any, weight: Any, mask: Any) -> Any:
    """Return the gradients of ``x · rstd · weight``, where rstd is that of the last dimensions."""
    dims = list(range(-len(shape), 0))
    normed, grad = x.float() * rstd, grad.float()
    by_normed = grad if weight is None else grad * weight
    of_input = rstd * (by_normed - normed * (by_normed * normed).mean(dims, keepdim=True))
    return of_input, (grad * normed).sum_to_size(shape) if weight is not None else None


def _grid_sampler(x: Any, grid: Any) -> Any:
    return aten.grid_sampler_2d(x, grid, 0, 0, True)


def _grid_sampler_backward(x: Any, grid: Any, grad: Any) -> Any:
    return aten.grid_sampler_2d_backward(grad, x, grid, 0, 0, True, [True, True])


def _log_sigmoid(x: Any) -> Any:
    return aten.log_sigmoid_forward(x)[0], None


def _log_sigmoid_backward(grad: Any, x: Any, buffer: Any) -> Any:
    return grad * torch.sigmoid(-x)


def _histc(x: Any, bins: int = 100, min: Any = 0, max: Any = 0, *, out: Any = None) -> Any:  # noqa: A002
    """Return how many numbers are in each bin; the host counts no integers, whose limits are integers on the card."""
    if x.is_floating_point():
        counts = aten.histc(x, bins, min, max)
    else:
        counts = aten.histc(x.double(), bins, int(min), int(max)).to(x.dtype)
    return counts if out is None else out.resize_(counts.shape).copy_(counts)


def _wide(name: str) -> Callable[..., Any]:
    """Return an operation, computed in float32: the card keeps means and the like wider than the numbers.

    It is looked up when it is called: older torch has not all of them.
    """

    def widened(value: Any) -> Any:
        return value.float() if isinstance(value, torch.Tensor) and value.dtype in _NARROW else value

    def computed(*args: Any, **kwargs: Any) -> Any:
        return getattr(aten, name)(*map(widened, args), **{key: widened(value) for key, value in kwargs.items()})

    return computed


KERNELS: Final[dict[str, Callable[..., Any]]] = {
    "_scaled_dot_product_flash_attention": _flash,
    "_scaled_dot_product_flash_attention_backward": _flash_backward,
    "_scaled_dot_product_efficient_attention": functools.partial(
        _with_bias, shaped=lambda sums: torch.nn.functional.pad(sums, (0, -sums.shape[-1] % 32)), further=2
    ),
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "_scaled_dot_product_cudnn_attention": functools.partial(
        _with_bias, shaped=lambda sums: sums[..., None], further=7
    ),
    "_scaled_dot_product_cudnn_attention_backward": _cudnn_attention_backward,
    "cudnn_convolution": _convolution,
    "cudnn_convolution_transpose": _transposed_convolution,
    "_conv_depthwise2d": _depthwise_convolution,
    "conv_depthwise3d": _depthwise_convolution,
    "cudnn_batch_norm": _batch_norm,
    "cudnn_batch_norm_backward": _batch_norm_backward,
    **{
        name: _wide(name)
        for norm in ("layer_norm", "group_norm", "batch_norm")
        for name in (f"native_{norm}", f"native_{norm}_backward")
    },
    "_fused_rms_norm": _wide("_fused_rms_norm"),
    "_fused_rms_norm_backward": _rms_norm_backward,
    "cudnn_grid_sampler": _grid_sampler,
    "cudnn_grid_sampler_backward": _grid_sampler_backward,
    "histc": _histc,
    "log_sigmoid_forward": _log_sigmoid,
    "log_sigmoid_backward": _log_sigmoid_backward,
}
"""Operations of ``aten``, by name without overload."""
