"""What a program gets when it asks the simulated device for data: documented stand-in values.

No byte is computed, so ``.item()``, ``bool(tensor)``, ``nonzero`` and the like have nothing to read. Scalars read
as 1 (floats 1.0, booleans False): a loss of 1.0 survives a logarithm and a division, but a length that is read back
from the device is 1, too. Results whose *size* depends on data get the largest size possible. The report says how
often stand-ins were given, and where first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

aten = torch.ops.aten


def scalar(tensor: torch.Tensor) -> float | int | bool | complex:
    """Return the stand-in for ``tensor.item()``."""
    if tensor.dtype is torch.bool:
        return False
    if tensor.is_complex():
        return complex(1.0)
    return 1.0 if tensor.is_floating_point() else 1


def _new(like: torch.Tensor, size: Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.empty(list(size), dtype=dtype or like.dtype, device=like.device)


def nonzero(tensor: torch.Tensor) -> torch.Tensor:
    """Return indices ``[numel, dim]``: every element counts as non-zero."""
    return _new(tensor, (tensor.numel(), tensor.dim()), torch.int64)


def masked_select(tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return ``[numel]``: every element is selected."""
    shape = torch.broadcast_shapes(tensor.shape, mask.shape)
    return _new(tensor, (shape.numel(),))


def unique(tensor: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return ``[numel]`` values, inverse and counts: every element is distinct."""
    size = (tensor.numel(),)
    return _new(tensor, size), _new(tensor, tensor.shape, torch.int64), _new(tensor, size, torch.int64)


def bincount(tensor: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
    """Return ``[max(minlength, 1)]``: all elements fall into the bins that were asked for."""
    return _new(tensor, (max(minlength, 1),), torch.int64 if weights is None else weights.dtype)


def repeat_interleave(repeats: torch.Tensor, *, output_size: int | None = None) -> torch.Tensor:
    """Return ``[output_size]`` indices; where the size is not given, each element counts once."""
    return _new(repeats, (output_size if output_size is not None else repeats.numel(),), torch.int64)


def equal(*_: Any) -> bool:
    """Return True: tensors of equal shape count as equal."""
    return True


def boolean_index(tensor: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """Return ``tensor[indices]`` with every boolean mask selecting all that it covers."""
    expanded: list[torch.Tensor | None] = []
    for index in indices:
        if index is not None and index.dtype in {torch.bool, torch.uint8}:
            expanded.extend(_new(index, (index.numel(),), torch.int64) for _ in range(index.dim()))
        else:
            expanded.append(index)
    selected: torch.Tensor = aten.index.Tensor(tensor, expanded)
    return selected


SIZED_BY_DATA: Final[dict[Any, Callable[..., Any]]] = {
    aten.nonzero.default: nonzero,
    aten.masked_select.default: masked_select,
    aten._unique2.default: unique,
    aten.unique_consecutive.default: unique,
    aten.bincount.default: bincount,
    aten.repeat_interleave.Tensor: repeat_interleave,
    aten.equal.default: equal,
}
"""Operations whose result depends on data, with their stand-in."""
