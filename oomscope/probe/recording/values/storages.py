"""Where the storage of a tensor is and how large, without an object of Python for the storage.

Such an object counts as a reference to the storage as long as the storage lives (torch 2.10 and newer), and autograd
adds up gradients in place only where a storage has a single reference (torch/csrc/autograd/input_buffer.cpp). So
``untyped_storage()`` of a gradient would change what backward allocates.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

import torch


def start_of(tensor: torch.Tensor) -> int:
    """Return the address at which a tensor's storage begins; 0 for a tensor without elements."""
    return tensor.data_ptr() - int(tensor.storage_offset()) * tensor.itemsize if tensor.numel() else 0


def number_of(tensor: torch.Tensor) -> int:
    """Return what ``tensor.untyped_storage()._cdata`` is: no other storage has it as long as this one lives."""
    return int(torch._C._storage_address(tensor))  # type: ignore[attr-defined]


def size_of(tensor: torch.Tensor) -> int:
    """Return how many bytes a tensor's storage has."""
    size_of_handle, delete = _functions()
    capsule = torch._C._aoti.unsafe_alloc_void_ptr_from_tensor(tensor)
    handle = ctypes.pythonapi.PyCapsule_GetPointer(ctypes.py_object(capsule), None)
    size = ctypes.c_int64()
    size_of_handle(handle, ctypes.byref(size))
    delete(handle)
    return size.value


@functools.cache
def _functions() -> tuple[Callable[..., int], Callable[..., int]]:
    """Return torch's functions for the size of a handle's storage, and for the end of a handle."""
    ctypes.pythonapi.PyCapsule_GetPointer.restype = ctypes.c_void_p
    ctypes.pythonapi.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    library.aoti_torch_get_storage_size.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_int64)]
    library.aoti_torch_delete_tensor_object.argtypes = [ctypes.c_void_p]
    return library.aoti_torch_get_storage_size, library.aoti_torch_delete_tensor_object
