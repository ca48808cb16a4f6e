"""What the card holds of a tensor, read from it and written to it, and what still counts as held.

A kernel that is given a tensor makes it unknown, though it may only have read it. It still counts as known while its
version says that nothing was written into it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack
from torch.utils.weak import TensorWeakRef, WeakTensorKeyDictionary

from oomscope import virtual
from oomscope.probe.recording.values.storages import number_of, size_of, start_of

MOST_ELEMENTS: Final = 1 << 22
"""Of a tensor whose values are followed."""
MOST_NUMBERS: Final = 1 << 18
"""Of a tensor of floating-point numbers whose values are followed: counters, flags and masks."""
MOST_BYTES: Final = 32 << 20
"""Of the storage behind it, which is copied for each operation."""
_MUCH_BYTES: Final = 16 << 20
_LEAST_PART: Final = 128
"""A part of a storage of more bytes than that is followed where it is at least this share of it: an expert's mask."""
_CHECKPOINT: Final = "torch.utils.checkpoint"
"""Whose modes pass every operation on to the card."""

_owners: dict[int, TensorWeakRef] = {}
"""Of storages, the tensor in ``_known``: what C++ expands in backward is a view that does not say so."""
_known = WeakTensorKeyDictionary()
"""Of tensors that the card held, without views of others: storage, address and version then.

A storage that is referred to, though weakly, has no successor with its number; an address has.
"""


def note_known(tensor: torch.Tensor) -> None:
    """Note with its version that the card holds ``tensor``, where it does and that tells (:func:`is_unchanged`)."""
    if not _has_version(tensor):
        return
    owner = tensor if tensor._base is None else tensor._base
    storage = owner.untyped_storage()
    if virtual.is_held(storage.data_ptr(), storage.nbytes()):
        _known[owner] = (StorageWeakRef(storage), storage.data_ptr(), owner._version)
        _owners[storage._cdata] = TensorWeakRef(owner)


def note_changed(tensor: torch.Tensor) -> None:
    """Note anew what the card holds of ``tensor``: what was copied there, and nothing that was there before."""
    place = start_of(tensor), size_of(tensor)
    if virtual.is_held(*place):
        note_known(tensor)
    else:
        virtual.forget_last_held(*place)


def is_unchanged(tensor: torch.Tensor) -> bool:
    """Whether the values of ``tensor`` were known, and nothing that torch knows of was written into it since.

    Of floating-point numbers torch does not always know: of gradient scalers and running means it counts no version.
    What the kernels of others write, the card forgets. Not seen is what is written through ``.data``, a storage or
    another tensor over the same memory, by a function without a wrapper.
    """
    if not _has_version(tensor):
        return False
    owner: torch.Tensor | None = tensor if tensor._base is None else tensor._base
    if owner not in _known:
        noted = _owners.get(number_of(tensor))
        owner = noted() if noted is not None else None
    if owner is None or owner not in _known:
        return False
    reference, address, version = _known[owner]
    return (reference.cdata, address, version) == (number_of(owner), start_of(owner), owner._version)


def _has_version(tensor: torch.Tensor) -> bool:
    """Whether the version of a tensor tells each change of its values that torch knows of."""
    return not (tensor.is_inference() or tensor.dtype.is_floating_point or tensor.dtype.is_complex)


class OutOfModes:
    """Hides what a block does from selective activation checkpointing, which counts the operations that it sees.

    A class: Dynamo would compile the frames of contextlib.
    """

    def __enter__(self) -> None:
        """Leave the modes."""
        self._left = _disable_current_modes() if torch._C._len_torch_dispatch_stack() else None
        if self._left is not None:
            self._left.__enter__()

    def __exit__(self, *error: object) -> None:
        """Enter them again."""
        if self._left is not None:
            self._left.__exit__(None, None, None)


def _has_its_numbers(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` is strided, and is not conjugated or negated lazily."""
    return tensor.layout is torch.strided and not (tensor.is_conj() or tensor.is_neg())


def is_on_host(tensor: Any) -> bool:
    """Whether the values of ``tensor`` are in the memory of the host."""
    return isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu" and _has_its_numbers(tensor)


def is_writable(tensor: Any) -> bool:
    """Whether values of a tensor can be written to the card now."""
    return (
        type(tensor) is torch.Tensor
        and tensor.is_cuda
        and _has_its_numbers(tensor)
        and 0 < tensor.numel() <= MOST_ELEMENTS
        and torch._C._functorch.peek_interpreter_stack() is None
        and all(type(mode).__module__ == _CHECKPOINT for mode in _get_current_dispatch_mode_stack())
        and size_of(tensor) <= MOST_BYTES
        and not torch.cuda.is_current_stream_capturing()
    )


def is_followed(tensor: Any) -> bool:
    """Whether the values of ``tensor`` decide enough, and are few enough, to be computed on the host."""
    if type(tensor) is not torch.Tensor or not tensor.is_cuda or tensor.requires_grad:
        return False
    is_exact = not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)
    if not (is_exact or tensor.numel() <= MOST_NUMBERS) or not is_writable(tensor):
        return False
    return size_of(tensor) <= max(_MUCH_BYTES, _LEAST_PART * tensor.nbytes)


def write_values(tensor: torch.Tensor, values: torch.Tensor, *, are_noted: bool = True) -> None:
    """Let a tensor on the card hold what the host computed, where it can."""
    if values.shape != tensor.shape or values.dtype != tensor.dtype:
        return
    with OutOfModes():
        values = values.contiguous() if tensor.is_contiguous() else torch.empty_like(tensor, device="cpu").copy_(values)
    if not tensor.is_contiguous() and values.stride() != tensor.stride():  # it has gaps, or elements that share memory
        return
    virtual.write_held(tensor.data_ptr(), values.data_ptr(), values.nbytes, virtual.Origin.COMPUTED)
    if are_noted:
        note_known(tensor)


def write_shortened(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Write the values of a new result that torch may have shortened: what its storage has room for behind it is zero.

    Operations take an operand only where all of its storage is held.
    """
    room = size_of(tensor) // tensor.itemsize
    if room > tensor.numel() and tensor.is_contiguous() and values.dtype == tensor.dtype:
        with OutOfModes():
            behind = torch.zeros(room - values.numel(), dtype=values.dtype, device="cpu")
            tensor, values = tensor.as_strided((room,), (1,), 0), torch.cat([values.flatten(), behind])
    write_values(tensor, values)


class HeldOperands:
    """The operands of one call on the host, whole storages: what overlaps on the card overlaps here."""

    def __init__(self, *, are_noted: bool = True) -> None:
        self._are_noted = are_noted
        self._tensors: list[torch.Tensor] = []
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._origins: dict[int, virtual.Origin] = {}
        self._on_host: dict[int, torch.Tensor] = {}

    @property
    def addresses(self) -> frozenset[int]:
        """Where their storages begin on the card."""
        return frozenset(self._storages)

    def take(self, tensor: torch.Tensor) -> bool:
        """Read a tensor from the card; return whether all of its storage is known."""
        address, size = start_of(tensor), size_of(tensor)
        if address not in self._storages:
            if not (virtual.is_held(address, size) or is_unchanged(tensor)):
                return False
            copy = torch.UntypedStorage(size)
            origin = virtual.read_held(copy.data_ptr(), address, size)
            if origin is virtual.Origin.NOT_HELD and is_unchanged(tensor):
                origin = virtual.read_last_held(copy.data_ptr(), address, size)
            elif origin is not virtual.Origin.NOT_HELD and self._are_noted:
                note_known(tensor)
            if origin is virtual.Origin.NOT_HELD:
                return False
            self._tensors.append(tensor)
            self._origins[address] = origin
            self._storages[address] = copy
        with OutOfModes():
            host = torch.empty(0, dtype=tensor.dtype, device="cpu")
            host.set_(self._storages[address], tensor.storage_offset(), tensor.size(), tensor.stride())
        self._on_host[id(tensor)] = host
        return True

    def on_host(self, argument: Any) -> Any:
        """Return an argument with its tensors, and the device, on the host."""
        if type(argument) in (tuple, list):
            return type(argument)(map(self.on_host, argument))
        if isinstance(argument, torch.Tensor):
            return self._on_host[id(argument)]
        if isinstance(argument, torch.device) or (isinstance(argument, str) and argument.startswith("cuda")):
            return "cpu"
        if isinstance(argument, str) and argument.startswith("torch.cuda."):
            return argument.replace("torch.cuda.", "torch.", 1)
        return argument

    def known_of(self, arguments: Iterable[Any]) -> list[torch.Tensor | bool]:
        """Return those of a call's arguments that are booleans or among the operands, on the host."""
        found = (each if type(each) is bool else self._on_host.get(id(each)) for each in arguments)
        return [each for each in found if each is not None]

    def put_back(self, *, changed: bool = False) -> None:
        """Write the operands to the card again, and what the call changed in place."""
        for address, storage in self._storages.items():
            origin = virtual.Origin.COMPUTED if changed else self._origins[address]
            virtual.write_held(address, storage.data_ptr(), storage.nbytes(), origin)
        if changed:
            for tensor in self._tensors:
                note_known(tensor)
