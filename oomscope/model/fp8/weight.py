"""A weight in fp8: copies beside 16 bits, made once a step and kept for good, or the parameter itself.

Copies take 1 byte an element, 2 where columns need their own (Transformer Engine pytorch/module/base.py,
quantize_weight). With ``fp8_param`` there is no 16-bit weight: what autograd sees is a husk without bytes, and the fp8
bytes along rows are what the distributed optimizer gathers. The transpose is made when a product first needs it, and
stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import nn

from oomscope.model.base.devices import computes
from oomscope.model.base.observer import Observer
from oomscope.model.fp8 import values
from oomscope.model.fp8.recipe import Fp8Recipe
from oomscope.model.fp8.tensor import Quantized, quantize, write

_FORWARD_TENSORS = 3
_BACKWARD_TENSORS = 2


def fp8_parameter(weight: nn.Parameter, recipe: Fp8Recipe) -> nn.Parameter:
    """Return a parameter like ``weight`` [out, in] whose only bytes are fp8 (pytorch/module/base.py,
    reset_parameters). Its attributes are those of ``weight``; its gradient has the dtype of ``weight``.
    """
    quantized = quantize(weight.detach(), recipe, columnwise=True, weight=True)
    if quantized.scale is None:
        raise RuntimeError("a parameter in fp8 has one scale")
    husk = quantized.scale.view(weight.dtype)[:1].expand(weight.shape)
    parameter = nn.Parameter(husk)
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


def new_master(param: nn.Parameter, start: int, numel: int) -> torch.Tensor:
    """Return elements [start, start + numel) of a parameter in fp8 as an fp32 master weight.

    Megatron-Core starts from the 16-bit value, which Transformer Engine keeps on the host until then
    (distrib_optimizer.py, ``get_high_precision_init_val``); here from what fp8 has left of it.
    """
    quantized = quantized_of(param)
    master = torch.empty(numel, dtype=torch.float32, device=param.device)
    if quantized is not None and computes(param.device):
        master.copy_(quantized.values().flatten()[start : start + numel])
    return master


def write_masters(
    params: Sequence[nn.Parameter], masters: Mapping[int, tuple[int, torch.Tensor]], group: dist.ProcessGroup | None
) -> None:
    """Quantise the masters that this rank holds into the parameters in fp8.

    All masters are rounded to 16 bits first, and are there together (pytorch/tensor/utils.py,
    quantize_master_weights). The largest value of a parameter is that of all ranks' parts.

    Args:
        params: of a store, those in 16 bits among them.
        masters: of the index of a parameter, where in it the part begins, and the part.
        group: ranks that hold the other parts.
    """
    rounded = {index: (start, master.to(params[index].dtype)) for index, (start, master) in masters.items()}
    if not params or not computes(params[0].device):
        return
    peaks = torch.zeros(len(params))
    for index, (_, part) in rounded.items():
        peaks[index] = part.abs().max()
    if group is not None:
        dist.all_reduce(peaks, op=dist.ReduceOp.MAX, group=group)
    for index, param in enumerate(params):
        quantized = quantized_of(param)
        if quantized is None or quantized.data is None or quantized.scale is None:
            continue
        scale = (peaks[index] / torch.finfo(quantized.dtype).max).clamp_min(2.0**-100).view(1, 1)
        values.store_scales(quantized.scale, scale)
        if index in rounded:
            start, part = rounded[index]
            row = part.view(1, -1)
            quantized.data.view(-1)[start : start + part.numel()].copy_(
                values.quantised(row, scale, (1, row.shape[1]), quantized.dtype).view(-1)
            )


class Fp8Weight:
    """What products read of one weight.

    Args:
        weight: [out, in].
        recipe: how it is scaled.
        observer: told the roles of what is kept for good.
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
                own.refresh()
            return own
        if self._kept is None or (columnwise and self._lacks_columns(self._kept)):
            made = quantize(self._weight.detach(), self.recipe, columnwise=columnwise, weight=True)
            if not self.recipe.caches_weights:
                return made
            self._kept = made
            self._observer.role("workspace", [x for x in made.tensors() if x is not None])
        elif computes(self._weight.device):
            write(self._kept, self._weight.detach())
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
