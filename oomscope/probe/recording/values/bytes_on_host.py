"""Tensors of a computed card, read and written by the host in the memory that they have in common.

:class:`~oomscope.virtual.CardSettings` with ``is_computed`` makes device memory accessible. The card knows by ranges of
bytes what it holds; here a tensor is the range from its first element to its last.
"""

from __future__ import annotations

import ctypes

import torch

from oomscope import virtual
from oomscope.probe.recording.values.storages import size_of, start_of


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the host over the same bytes. It must not outlive ``tensor``."""
    if not tensor.numel():
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    memory = (ctypes.c_char * size_of(tensor)).from_address(start_of(tensor))
    twin = torch.empty(0, dtype=tensor.dtype, device="cpu")
    bytes_of_it = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    twin.set_(bytes_of_it, tensor.storage_offset(), tensor.shape, tensor.stride())
    if tensor.is_conj():
        twin = twin.conj()
    return torch._neg_view(twin) if tensor.is_neg() else twin


def is_held(tensor: torch.Tensor) -> bool:
    """Return whether the card holds a tensor; one that is sparse or nested has no bytes that are read here."""
    return has_storage(tensor) and (not tensor.numel() or virtual.is_held(*_range_of(tensor)))


def has_storage(tensor: torch.Tensor) -> bool:
    """Return whether sizes and strides tell where the elements of a tensor are."""
    return tensor.layout is torch.strided and not tensor.is_nested


def hold(tensor: torch.Tensor) -> None:
    """Count all of a tensor's storage as held, with the bytes that are there."""
    if tensor.numel():
        virtual.hold(start_of(tensor), size_of(tensor))


def unhold(tensor: torch.Tensor) -> None:
    """Count a tensor as unknown."""
    if has_storage(tensor) and tensor.numel():
        virtual.unhold(*_range_of(tensor))


def write(tensor: torch.Tensor, values: torch.Tensor, *, are_gaps_known: bool) -> None:
    """Write ``values`` of the same shape; the card then holds them.

    Args:
        tensor: on the card.
        values: on the host.
        are_gaps_known: what is between the tensor's elements was held, or is nothing. Else the card holds the tensor
            only if there is nothing between them.
    """
    if not tensor.numel():
        return
    on_host(tensor).copy_(values)
    address, size = _range_of(tensor)
    if are_gaps_known or size == tensor.numel() * tensor.itemsize:
        virtual.hold(address, size)


def _range_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the address and the size in bytes of a tensor that has elements."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), (last + 1) * tensor.itemsize
