"""Where CUDA writes in place and fake tensors would not: sums of gradients, and scatters into fresh zeros.

Torch's engine and its backward formulas write into a tensor that nobody else holds, unless a tensor subclass or a
dispatch mode is at work; both are at work on the simulated device, so the same conditions are tested here.
"""

from __future__ import annotations

from typing import Final

import torch
from torch._prims_common import is_non_overlapping_and_dense_or_false
from torch._subclasses.fake_tensor import FakeTensor

aten = torch.ops.aten

IN_PLACE_TWINS: Final = {
    aten.index_put.default: aten.index_put_.default,
    aten.index_add.default: aten.index_add_.default,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value,
    aten.scatter_add.default: aten.scatter_add_.default,
}
"""What backward formulas do in place on fresh zeros, and out of place for a tensor subclass such as a fake tensor.

Source: PyTorch torch/csrc/autograd/FunctionsManual.cpp, ``areAnyTensorSubclassLike``.
"""

UNIQUE_STORAGE_COUNT: Final = 2
"""References to a gradient's storage, as this mode sees it, when the engine's buffer is its only owner: the
buffer's tensor and the Python object that asks."""


def can_accumulate(buffer: torch.Tensor, incoming: torch.Tensor) -> bool:
    """Say whether the engine would add ``incoming`` into ``buffer`` in place.

    Source: PyTorch torch/csrc/autograd/input_buffer.cpp, ``can_accumulate_inplace``.
    """
    return (
        isinstance(incoming, FakeTensor)
        and buffer.shape == incoming.shape
        and buffer.dtype is incoming.dtype
        and only_owner(buffer)
        and is_non_overlapping_and_dense_or_false(buffer)
    )


def only_owner(tensor: torch.Tensor) -> bool:
    """Say whether nobody but the caller holds ``tensor``'s storage."""
    if not isinstance(tensor, FakeTensor):
        return False
    return bool(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) <= UNIQUE_STORAGE_COUNT)
