"""Tensors of a virtual card as the card knows them: which of their bytes it holds, read and written by the host."""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any, Final, Self

import torch

from oomscope import virtual
from oomscope.probe.recording.values.storages import size_of, start_of
from oomscope.virtual.settings import is_computed

_MOST_RUNS: Final = 1 << 16
"""Most runs of a tensor with gaps. A tensor with more is not held, and all between its ends becomes unknown with it."""


@functools.cache  # a program may change the environment
def shares_memory() -> bool:
    """Return whether device memory is accessible to the host, as of a card with ``CardSettings.is_computed``."""
    return is_computed(os.environ)


def is_plain(tensor: Any) -> bool:
    """Return whether sizes and strides show where on the card the elements of a tensor are."""
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.is_cuda
        and tensor.layout is torch.strided
        and not (tensor.is_nested or tensor.is_quantized)
    )


def is_held(tensor: torch.Tensor) -> bool:
    """Return whether the card holds a tensor; one that is sparse or nested has no bytes that are read here."""
    if not is_plain(tensor):
        return False
    if not tensor.numel():
        return True
    runs = _runs_of(tensor)
    return virtual.holds(_hull_of(tensor) if runs is None else runs)


def hold(tensor: torch.Tensor) -> None:
    """Count a tensor as held, with the bytes that are there."""
    if tensor.numel() and (runs := _runs_of(tensor)) is not None:
        virtual.hold(runs)


def unhold(tensor: torch.Tensor) -> None:
    """Count a tensor as unknown, and all that one consists of that is sparse or nested."""
    for part in parts_of(tensor):
        if is_plain(part) and part.numel():
            virtual.unhold(_runs_of(part) or _hull_of(part))


def parts_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return what a tensor consists of: indices and values if it is sparse, values if it is nested, else itself."""
    if tensor.is_nested:
        return [torch.ops.aten.values(tensor)]
    if tensor.layout is torch.strided:
        return [tensor]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor]


def unhold_new(tensor: torch.Tensor) -> None:
    """Count a tensor with memory of its own as unknown, and what was held where it is now."""
    for part in parts_of(tensor):
        if is_plain(part) and (size := part.nbytes if part.is_contiguous() else hull_bytes(part)):
            virtual.unhold_new(part.data_ptr(), size)


class PreserveHeld:
    """Restores after a block what became unknown in it because this thread passed pointers to kernels. Blocks may nest.

    Args:
        written: what is unknown after the block nevertheless; the block may add to it.
    """

    def __init__(self, written: list[torch.Tensor]) -> None:
        self._written = written

    def __enter__(self) -> Self:
        """Remember from now on what becomes unknown."""
        virtual.keep_held()
        return self

    def __exit__(self, *error: object) -> None:
        """Hold the rest again."""
        whole: list[int] = []
        others: list[torch.Tensor] = []
        for each in self._written:
            if is_plain(each) and each.is_contiguous():
                whole += (each.data_ptr(), each.nbytes)
            else:
                others.append(each)
        virtual.restore_held(whole)
        for each in others:
            unhold(each)


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the host with the bytes of one of the card.

    They are the same bytes if the card shares its memory: it must not outlive ``tensor`` then.
    """
    if not tensor.numel():
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    twin = torch.empty(0, dtype=tensor.dtype, device="cpu")
    if shares_memory():
        memory = (ctypes.c_char * size_of(tensor)).from_address(start_of(tensor))
        bytes_of_it = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
        twin.set_(bytes_of_it, tensor.storage_offset(), tensor.shape, tensor.stride())
    else:
        address, size = _hull_of(tensor)[:2]
        copy = torch.UntypedStorage(size)
        virtual.read(copy.data_ptr(), address, size)
        twin.set_(copy, 0, tensor.shape, tensor.stride())
    if tensor.is_conj():
        twin = twin.conj()
    return torch._neg_view(twin) if tensor.is_neg() else twin


def write(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Write ``values`` of the same shape from the host; the card then holds them."""
    if not tensor.numel():
        return
    is_written = True
    if shares_memory():
        on_host(tensor).copy_(values)
    else:
        address, size = _hull_of(tensor)[:2]
        is_dense = size == tensor.nbytes and not (tensor.is_conj() or tensor.is_neg())
        whole = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
        twin = (whole if is_dense else on_host(tensor)).copy_(values)
        is_written = virtual.write(address, twin.untyped_storage().data_ptr(), size)
    hold(tensor) if is_written else unhold(tensor)


def hull_bytes(tensor: torch.Tensor) -> int:
    """Return how many bytes there are from the first element of a tensor to its last; 0 for one without elements."""
    return _hull_of(tensor).run if tensor.numel() else 0


def ends_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Return where the first byte of a tensor is, and where its last byte ends; the same place without elements."""
    address = tensor.data_ptr()
    return address, address + hull_bytes(tensor)


def _hull_of(tensor: torch.Tensor) -> virtual.Runs:
    """Return all from the first byte of a tensor to its last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return virtual.Runs(tensor.data_ptr(), (last + 1) * tensor.itemsize)


def _runs_of(tensor: torch.Tensor) -> virtual.Runs | None:
    """Return the bytes of a tensor that has elements; None where they are too many runs."""
    if tensor.is_contiguous():
        return virtual.Runs(tensor.data_ptr(), tensor.nbytes)
    width = tensor.itemsize
    loops = sorted(
        (stride * width, size) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1
    )
    run, count = width, 1
    sizes: list[int] = []
    strides: list[int] = []
    for stride, size in loops:
        if stride == 0:
            continue
        if stride == run and not sizes:
            run *= size
        else:
            sizes.insert(0, size)
            strides.insert(0, stride)
            count *= size
    if count > _MOST_RUNS:
        return None
    return virtual.Runs(tensor.data_ptr(), run, tuple(sizes), tuple(strides))
