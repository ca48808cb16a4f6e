"""A matrix in fp8: its bytes row by row, its bytes column by column, and their scales.

Either copy is there as long as a product needs it (Transformer Engine pytorch/quantized_tensor.py, ``update_usage``).
The copies are made and nothing is written: the model multiplies in fp8 on a virtual card alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from oomscope.model.base.operations import all_gather
from oomscope.model.fp8.recipe import Fp8Recipe
from oomscope.model.parallel.tensor_parallel import TensorParallel

SAVED = 4
"""Tensors that a quantised matrix hands to autograd."""


@dataclass
class Quantized:
    """A matrix [rows, columns] in fp8."""

    shape: tuple[int, int]
    dtype: torch.dtype
    """Of fp8; the copies are bytes."""
    recipe: Fp8Recipe
    is_weight: bool = False
    data: torch.Tensor | None = None
    """[rows, columns], or None where only the other copy is kept."""
    scale: torch.Tensor | None = None
    transpose: torch.Tensor | None = None
    """[columns, rows]; [rows, columns] under mxfp8, which reads columns without turning them."""
    transpose_scale: torch.Tensor | None = None
    """None where both copies share a scale."""

    def tensors(self) -> tuple[torch.Tensor | None, ...]:
        """Return what autograd saves of it."""
        return self.data, self.scale, self.transpose, self.transpose_scale

    def with_tensors(self, saved: tuple[torch.Tensor | None, ...]) -> Quantized:
        """Return it with what autograd saved."""
        return Quantized(self.shape, self.dtype, self.recipe, self.is_weight, *saved)

    def drop_rows(self) -> None:
        """Keep only what products along columns read."""
        if not self.recipe.one_copy:
            self.data = None
            if not self.recipe.per_tensor:
                self.scale = None

    def need_columns(self) -> None:
        """Make the copy along columns of the one along rows, if a product needs it and it is not there."""
        if self.transpose is None and self.recipe.per_tensor and not self.recipe.one_copy and self.data is not None:
            self.transpose = torch.empty((self.shape[1], self.shape[0]), dtype=torch.uint8, device=self.data.device)


def empty(
    shape: tuple[int, int],
    recipe: Fp8Recipe,
    *,
    device: torch.device,
    rowwise: bool = True,
    columnwise: bool = False,
    weight: bool = False,
    backward: bool = False,
) -> Quantized:
    """Return a matrix in fp8 that nothing was written to, in the order in which its tensors are made."""
    made = Quantized(shape, recipe.backward_dtype if backward else recipe.forward_dtype, recipe, weight)

    def scale(*, columns: bool) -> torch.Tensor:
        size = recipe.scale_shape(shape, columnwise=columns, weight=weight)
        return torch.empty(size, dtype=recipe.scale_dtype, device=device)

    if rowwise or recipe.one_copy:
        made.data = torch.empty(shape, dtype=torch.uint8, device=device)
    if rowwise and not recipe.per_tensor:
        made.scale = scale(columns=False)
    if columnwise and not recipe.one_copy:
        turned = shape if recipe.scaling == "mxfp8" else (shape[1], shape[0])
        made.transpose = torch.empty(turned, dtype=torch.uint8, device=device)
        if not recipe.per_tensor:
            made.transpose_scale = scale(columns=True)
    if recipe.per_tensor:
        made.scale = scale(columns=False)
    return made


def quantize(
    x: torch.Tensor,
    recipe: Fp8Recipe,
    *,
    rowwise: bool = True,
    columnwise: bool = False,
    weight: bool = False,
    backward: bool = False,
) -> Quantized:
    """Return what ``x`` [r, c] is quantised into.

    Args:
        x: the matrix.
        recipe: how it is scaled.
        rowwise: for products along rows.
        columnwise: for products along columns.
        weight: whether it is a weight, which is cut into other blocks.
        backward: whether it is a gradient.
    """
    rows, columns = x.shape
    return empty(
        (rows, columns),
        recipe,
        device=x.device,
        rowwise=rowwise,
        columnwise=columnwise,
        weight=weight,
        backward=backward,
    )


def gather(
    local: Quantized, tp: TensorParallel, *, rowwise: bool, columnwise: bool, backward: bool = False
) -> Quantized:
    """Return the matrix [r·t, c] of the ranks' ``local`` rows, as far as products need it.

    Scaled per tensor its bytes along rows are gathered and turned afterwards. Of blocks each direction is gathered for
    itself, and ``blockwise`` through scratch memory: the ranks' transposes lie one after the other, and so do the
    scales along rows (pytorch/distributed.py, _all_gather_fp8, _start_all_gather_fp8_blockwise, _all_gather_mxfp8).
    """
    recipe, shape = local.recipe, (local.shape[0] * tp.size, local.shape[1])
    present = local.data if local.data is not None else local.transpose
    if present is None:
        raise RuntimeError("a matrix without bytes cannot be gathered")
    device = present.device
    total = empty(
        shape, recipe, device=device, rowwise=rowwise or recipe.per_tensor, columnwise=columnwise, backward=backward
    )
    if recipe.per_tensor:
        total.scale = local.scale
        if total.data is not None and local.data is not None:
            all_gather(total.data, local.data, tp.group)
        return total
    if recipe.scaling == "blockwise":
        sources = (local.scale if rowwise else None, local.transpose if columnwise else None)
        scratch = [x.new_empty((x.shape[0] * tp.size, *x.shape[1:])) for x in sources if x is not None]
        del scratch
    return total
