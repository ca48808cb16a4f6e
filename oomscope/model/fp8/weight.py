"""A weight in fp8: copies beside 16 bits, made once a step and kept, or the parameter itself.

Copies take 1 byte an element, 2 where columns need their own (Transformer Engine pytorch/module/base.py,
quantize_weight). With ``fp8_param`` there is no 16-bit weight: autograd sees a placeholder without bytes, and the fp8
bytes along rows are what the distributed optimizer gathers. The transpose is made when a product first needs it, and
stays.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from oomscope.model.base.observer import Observer
from oomscope.model.fp8.recipe import Fp8Recipe
from oomscope.model.fp8.tensor import Quantized, quantize

_FORWARD_TENSORS = 3
_BACKWARD_TENSORS = 2


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
    """What products read of one weight.

    Args:
        weight: [out, in].
        recipe: how it is scaled.
        observer: receives the roles of permanent tensors.
    """

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
        if self._kept is None or (columnwise and self._lacks_columns(self._kept)):
            made = quantize(self._weight.detach(), self.recipe, columnwise=columnwise, weight=True)
            if not self.recipe.caches_weights:
                return made
            self._kept = made
            self._observer.role("workspace", [x for x in made.tensors() if x is not None])
        return self._kept

    @staticmethod
    def _lacks_columns(copy: Quantized) -> bool:
        return copy.transpose is None and not copy.recipe.one_copy

    def _remember(self) -> None:
        """Make the scales and the histories of largest values of inputs, weights and outputs, and of both gradients.

        Source: pytorch/quantization.py, DelayedScalingRecipeState.
        """
        device = self._weight.device
        for count in (_FORWARD_TENSORS, _BACKWARD_TENSORS):
            self._state.append(torch.empty(count, dtype=torch.float32, device=device))
            self._state.append(torch.empty((self.recipe.history, count), dtype=torch.float32, device=device))
        self._observer.role("workspace", self._state)
