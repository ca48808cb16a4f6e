"""A matrix in fp8: its bytes row by row, its bytes column by column, and their scales; and weights in fp8.

Either copy is there as long as a product needs it (Transformer Engine pytorch/quantized_tensor.py, ``update_usage``).
The copies are made and nothing is written: the model multiplies in fp8 on a virtual card alone. With ``fp8_param``
there is no 16-bit weight: autograd sees a placeholder without bytes, and the fp8 bytes along rows are what the
distributed optimizer gathers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from oomscope.model.base.observer import Observer
from oomscope.model.base.operations import all_gather
from oomscope.model.fp8.recipe import Fp8Recipe
from oomscope.model.parallel.tensor_parallel import TensorParallel

SAVED = 4
"""Tensors that a quantised matrix hands to autograd."""
_FORWARD_TENSORS = 3
_BACKWARD_TENSORS = 2


@dataclass
class Quantized:
    """A matrix [rows, columns] in fp8."""

    shape: tuple[int, int]
    dtype: torch.dtype
    """Dtype of fp8; the copies are bytes."""
    recipe: Fp8Recipe
    is_weight: bool = False
    data: torch.Tensor | None = None
    """[rows, columns], or None where only the other copy is kept."""
    scale: torch.Tensor | None = None
    transpose: torch.Tensor | None = None
    """[columns, rows]; [rows, columns] under mxfp8, which reads columns without turning them."""
    transpose_scale: torch.Tensor | None = None
    """Scale of ``transpose``; None where both copies share a scale."""

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


def quantize(
    x: torch.Tensor,
    recipe: Fp8Recipe,
    *,
    rowwise: bool = True,
    columnwise: bool = False,
    weight: bool = False,
    backward: bool = False,
) -> Quantized:
    """Return what the matrix ``x`` [r, c] is quantised into, its tensors made in Transformer Engine's order.

    It is for products along rows, along columns, or both; a weight is cut into other blocks than an activation, and a
    gradient (``backward``) has another dtype.
    """
    return _empty((x.shape[0], x.shape[1]), recipe, x.device, (rowwise, columnwise), weight=weight, backward=backward)


def _empty(
    shape: tuple[int, int],
    recipe: Fp8Recipe,
    device: torch.device,
    along: tuple[bool, bool],
    *,
    weight: bool = False,
    backward: bool = False,
) -> Quantized:
    made = Quantized(shape, recipe.backward_dtype if backward else recipe.forward_dtype, recipe, weight)
    rowwise, columnwise = along

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


def gather(
    local: Quantized, tp: TensorParallel, *, rowwise: bool, columnwise: bool, backward: bool = False
) -> Quantized:
    """Return the matrix [r·t, c] of the ranks' ``local`` rows, or the part that products need.

    Scaled per tensor its bytes along rows are gathered and turned afterwards. Of blocks each direction is gathered for
    itself, and ``blockwise`` through scratch memory: the ranks' transposes lie one after the other, and so do the
    scales along rows (pytorch/distributed.py, _all_gather_fp8, _start_all_gather_fp8_blockwise, _all_gather_mxfp8).
    """
    recipe, shape = local.recipe, (local.shape[0] * tp.size, local.shape[1])
    present = local.data if local.data is not None else local.transpose
    if present is None:
        raise RuntimeError("a matrix without bytes cannot be gathered")
    along = (rowwise or recipe.per_tensor, columnwise)
    total = _empty(shape, recipe, present.device, along, backward=backward)
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


# Weights -----------------------------------------------------------------------------------------------------------


def fp8_parameter(weight: nn.Parameter, recipe: Fp8Recipe) -> nn.Parameter:
    """Return a parameter like ``weight`` [out, in] whose only bytes are fp8 (pytorch/module/base.py,
    reset_parameters). Its attributes are those of ``weight``; its gradient has the dtype of ``weight``.
    """
    quantized = quantize(weight.detach(), recipe, columnwise=True, weight=True)
    if quantized.scale is None:
        raise RuntimeError("a parameter in fp8 has one scale")
    placeholder = quantized.scale.view(weight.dtype)[:1].expand(weight.shape)
    parameter = nn.Parameter(placeholder)
    parameter.__dict__.update(weight.__dict__)
    parameter.quantized = quantized  # type: ignore[attr-defined]
    return parameter


def quantized_of(param: torch.Tensor) -> Quantized | None:
    """Return the fp8 bytes of a parameter that has no others."""
    return getattr(param, "quantized", None)


def bytes_of(param: torch.Tensor) -> torch.Tensor:
    """Return what holds a parameter's value: bytes of fp8, or itself."""
    quantized = quantized_of(param)
    return param.detach() if quantized is None or quantized.data is None else quantized.data


def fp8_tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    """Yield what the parameters in fp8 of ``module`` consist of."""
    for param in module.parameters():
        quantized = quantized_of(param)
        if quantized is not None:
            yield from (tensor for tensor in quantized.tensors() if tensor is not None)


class Fp8Weight:
    """What products read of one weight."""

    def __init__(self, weight: nn.Parameter, recipe: Fp8Recipe, observer: Observer) -> None:
        self.recipe = recipe
        self._weight = weight
        self._observer = observer
        self._kept: Quantized | None = None
        self._state: list[torch.Tensor] = []

    def copy(self, *, columnwise: bool) -> Quantized:
        """Return the weight in fp8, with a copy along columns where a backward is to come."""
        if self.recipe.scaling == "delayed" and not self._state:
            self._remember()
        own = quantized_of(self._weight)
        if own is not None:
            if columnwise:
                own.need_columns()
            return own
        kept = self._kept
        if kept is None or (columnwise and kept.transpose is None and not kept.recipe.one_copy):
            made = quantize(self._weight.detach(), self.recipe, columnwise=columnwise, weight=True)
            if not self.recipe.caches_weights:
                return made
            self._kept = kept = made
            self._observer.role("workspace", [x for x in made.tensors() if x is not None])
        return kept

    def _remember(self) -> None:
        """Make the scales and the histories of largest values of inputs, weights and outputs, and of both gradients.

        Source: pytorch/quantization.py, DelayedScalingRecipeState.
        """
        device = self._weight.device
        for count in (_FORWARD_TENSORS, _BACKWARD_TENSORS):
            self._state.append(torch.empty(count, dtype=torch.float32, device=device))
            self._state.append(torch.empty((self.recipe.history, count), dtype=torch.float32, device=device))
        self._observer.role("workspace", self._state)
