"""Linear layers that multiply in fp8: what they keep is the input in fp8, or the 16-bit input that others keep anyway.

They allocate what Transformer Engine's products allocate, in its order (pytorch/module/linear.py and
layernorm_linear.py), and compute nothing: they run on a virtual card alone. Outputs and gradients have 16 bits. Under
sequence parallelism inputs are gathered in fp8.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from oomscope.model.base.operations import Function
from oomscope.model.fp8.quantized import SAVED, Fp8Weight, Quantized, gather, quantize
from oomscope.model.parallel.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    TensorParallel,
    all_reduce,
    reduce_scatter_sequence,
)


class _How(NamedTuple):
    """What a product needs to know beside its tensors."""

    weight: Fp8Weight
    tp: TensorParallel
    with_backward: bool
    """Whether a backward follows; False in the first pass of a checkpoint."""
    keeps_input: bool = False
    """Keep the 16-bit input, which another operation keeps too, in place of what it was quantised to."""


def _matrix(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1, x.shape[-1])


def _product(rows: int, columns: int, like: torch.Tensor) -> torch.Tensor:
    """Return room for a product [rows, columns] in the dtype of ``like``: one kernel, one allocation."""
    return torch.empty((rows, columns), dtype=like.dtype, device=like.device)


def _weight_gradient(weight: nn.Parameter, tp: TensorParallel) -> torch.Tensor | None:
    """Return the gradient in the dtype of ``weight``, or what stands for it where ``weight.main_grad`` takes it."""
    if tp.placeholders is None or getattr(weight, "main_grad", None) is None:
        return torch.empty_like(weight, memory_format=torch.contiguous_format)
    return tp.placeholders.of(weight)


class _Fp8Column(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, how: _How) -> torch.Tensor:
        tp, recipe = how.tp, how.weight.recipe
        gathered = tp.sequence_parallel
        turned_later = gathered and recipe.per_tensor
        columnwise = how.with_backward and not turned_later
        local = quantize(_matrix(x), recipe, columnwise=columnwise)
        x.untyped_storage().resize_(0)
        total = gather(local, tp, rowwise=True, columnwise=False) if gathered else local
        copy = how.weight.copy(columnwise=how.with_backward)
        out = _product(total.shape[0], weight.shape[0], weight)
        if how.with_backward:
            if not turned_later:
                local.drop_rows()
            ctx.local = local.with_tensors(())
            ctx.save_for_backward(weight, *local.tensors(), *copy.tensors())
        ctx.how, ctx.has_bias, ctx.shape = how, bias is not None, x.shape
        return out.view(-1, *x.shape[1:-1], weight.shape[0])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, None]:
        weight, *saved = ctx.saved_tensors
        how: _How = ctx.how
        tp, recipe = how.tp, how.weight.recipe
        local = ctx.local.with_tensors(saved[:SAVED])
        rows = _matrix(grad)
        grad_bias = rows.sum(0) if ctx.has_bias else None
        slopes = quantize(rows, recipe, columnwise=True, backward=True)
        x = local
        if tp.sequence_parallel:
            x = gather(local, tp, rowwise=recipe.per_tensor, columnwise=not recipe.per_tensor)
        grad_x = _product(slopes.shape[0], weight.shape[1], weight).view(-1, *ctx.shape[1:])
        grad_in = reduce_scatter_sequence(grad_x, tp) if tp.sequence_parallel else all_reduce(grad_x, tp)
        x.need_columns()
        grad_weight = _weight_gradient(weight, tp)
        return grad_in, grad_weight, grad_bias, None


class _Fp8Row(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, how: _How) -> torch.Tensor:
        tp = how.tp
        local = quantize(_matrix(x), how.weight.recipe, columnwise=how.with_backward and not how.keeps_input)
        copy = how.weight.copy(columnwise=how.with_backward)
        partial = _product(local.shape[0], weight.shape[0], weight)
        out = partial = partial.view(*x.shape[:-1], weight.shape[0])
        if tp.size > 1:
            out = reduce_scatter_sequence(partial, tp) if tp.sequence_parallel else all_reduce(partial, tp)
            out = out if bias is None else out.add_(bias)
        if how.with_backward:
            local.drop_rows()
            kept: tuple[torch.Tensor | None, ...] = (x,) if how.keeps_input else local.tensors()
            ctx.local = local.with_tensors(())
            ctx.save_for_backward(weight, *copy.tensors(), *kept)
        ctx.how, ctx.has_bias, ctx.shape = how, bias is not None, x.shape
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, None]:
        weight, *saved = ctx.saved_tensors
        how: _How = ctx.how
        tp, recipe = how.tp, how.weight.recipe
        grad_bias = _matrix(grad).sum(0) if ctx.has_bias else None
        slopes = _gradient(grad, how)
        if how.keeps_input:
            x = quantize(_matrix(saved[SAVED]), recipe, rowwise=recipe.per_tensor, columnwise=True)
        else:
            x = ctx.local.with_tensors(saved[SAVED:])
        grad_x = _product(slopes.shape[0], weight.shape[1], weight).view(ctx.shape)
        grad_weight = _weight_gradient(weight, tp)
        del x, slopes  # the last product reads both
        return grad_x, grad_weight, grad_bias, None


def _gradient(grad: torch.Tensor, how: _How) -> Quantized:
    """Return the gradient of an output in fp8, of all ranks' rows (pytorch/module/base.py, grad_output_preprocess)."""
    tp, recipe, rows = how.tp, how.weight.recipe, _matrix(grad)
    if not tp.sequence_parallel:
        return quantize(rows, recipe, columnwise=True, backward=True)
    local = quantize(rows, recipe, columnwise=not recipe.per_tensor, backward=True)
    return gather(local, tp, rowwise=True, columnwise=True, backward=True)


class Fp8ColumnParallelLinear(ColumnParallelLinear):
    """A column-parallel linear layer in fp8, of a weight [out/t, in] of 16 bits or in fp8 itself.

    Its input is a norm's output, which belongs to this layer and is freed once it is quantised (Transformer Engine's
    LayerNormLinear; under delayed scaling its norm writes fp8 at once).
    """

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None, tp: TensorParallel, fp8: Fp8Weight) -> None:
        super().__init__(weight, bias, tp)
        self._fp8 = fp8

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [s, b, out/t] from [s/σ, b, in]."""
        how = _How(self._fp8, self._tp, torch.is_grad_enabled())
        return _Fp8Column.apply(x, self.weight, self.bias, how)  # type: ignore[no-any-return]


class Fp8RowParallelLinear(RowParallelLinear):
    """A row-parallel linear layer in fp8, of a weight [out, in/t] of 16 bits or in fp8 itself.

    With ``keeps_input`` it keeps the 16-bit input, which another operation keeps too, and quantises it again in
    backward (Megatron-Core transformer/attention.py, ``set_save_original_input``; not under delayed scaling).
    """

    def __init__(
        self, weight: nn.Parameter, bias: nn.Parameter | None, tp: TensorParallel, fp8: Fp8Weight, *, keeps_input: bool
    ) -> None:
        super().__init__(weight, bias, tp)
        self._fp8 = fp8
        self._keeps_input = keeps_input

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [s/σ, b, out] from [s, b, in/t]."""
        how = _How(self._fp8, self._tp, torch.is_grad_enabled(), keeps_input=self._keeps_input)
        return _Fp8Row.apply(x, self.weight, self.bias, how)  # type: ignore[no-any-return]
