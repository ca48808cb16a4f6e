"""CUDA's calls for scripts of tests, on the card alone: no torch, which takes two seconds to import.

A status that is not 0 raises ``Refused``, unless a call is made through ``status``.
"""

from __future__ import annotations

import ctypes
import json
import struct
import sys
from ctypes import byref, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p

from oomscope.virtual import library, loading

MiB = 1 << 20
card = loading.load_libraries(loading.LIBRARIES)
loading._loaded = card


class Refused(Exception):
    """A call that did not succeed; its argument is the status."""


def say(value: object) -> None:
    """Give a value to the test."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def state() -> library.CardState:
    return library.state()


def status(name: str, *arguments: object) -> int:
    return int(getattr(card, name)(*arguments))


def call(name: str, *arguments: object) -> None:
    answer = status(name, *arguments)
    if answer:
        raise Refused(name, answer)


def malloc(size: int) -> int:
    pointer = c_void_p()
    call("cudaMalloc", byref(pointer), c_size_t(size))
    return pointer.value or 0


def free(pointer: int) -> None:
    call("cudaFree", c_void_p(pointer))


def free_bytes() -> int:
    free, total = c_size_t(), c_size_t()
    call("cudaMemGetInfo", byref(free), byref(total))
    return free.value


def to_device(pointer: int, data: bytes) -> None:
    call("cudaMemcpy", c_void_p(pointer), ctypes.create_string_buffer(data, len(data)), c_size_t(len(data)), c_int(1))


def to_host(pointer: int, size: int) -> bytes:
    out = ctypes.create_string_buffer(b"\xee" * size, size)
    call("cudaMemcpy", out, c_void_p(pointer), c_size_t(size), c_int(2))
    return out.raw


def on_device(to: int, source: int, size: int) -> None:
    call("cudaMemcpy", c_void_p(to), c_void_p(source), c_size_t(size), c_int(3))


def memset(pointer: int, byte: int, size: int) -> None:
    call("cudaMemset", c_void_p(pointer), c_int(byte), c_size_t(size))


def unknown(pointer: int, size: int) -> int:
    """Read; return how many of the bytes the card did not hold."""
    before = state().unknown_read_bytes
    to_host(pointer, size)
    return state().unknown_read_bytes - before


def reserve(size: int) -> int:
    address = c_uint64()
    call("cuMemAddressReserve", byref(address), c_size_t(size), c_size_t(0), c_uint64(0), c_uint64(0))
    return address.value


def create(size: int) -> int:
    properties = struct.pack("<iiiiQBBH4x", 1, 0, 1, 0, 0, 0, 0, 0)
    handle = c_uint64()
    call("cuMemCreate", byref(handle), c_size_t(size), properties, c_uint64(0))
    return handle.value


def map_physical(address: int, size: int, handle: int) -> None:
    call("cuMemMap", c_uint64(address), c_size_t(size), c_size_t(0), c_uint64(handle), c_uint64(0))


def stream(flags: int = 1) -> c_void_p:
    made = c_void_p()
    call("cudaStreamCreateWithFlags", byref(made), c_uint(flags))
    return made


def event(flags: int = 0) -> c_void_p:
    made = c_void_p()
    call("cudaEventCreateWithFlags", byref(made), c_uint(flags))
    return made


def milliseconds(start: c_void_p, end: c_void_p) -> float:
    elapsed = c_float()
    call("cudaEventElapsedTime", byref(elapsed), start, end)
    return elapsed.value


class Dim3(ctypes.Structure):
    _fields_ = [("x", c_uint), ("y", c_uint), ("z", c_uint)]


ONE = Dim3(1, 1, 1)


def launch(kernel: object, *arguments: bytes, stream: c_void_p | None = None) -> int:
    """Launch a kernel with these arguments through the runtime; return the status."""
    buffers = [ctypes.create_string_buffer(argument, len(argument)) for argument in arguments]
    array = (c_void_p * max(len(buffers), 1))(*map(ctypes.addressof, buffers))
    return status("cudaLaunchKernel", kernel, ONE, Dim3(32, 1, 1), array, c_size_t(0), stream or c_void_p())


def launch_with_buffer(pointer: int) -> None:
    """Launch a kernel of a module whose only argument is this pointer, given in one buffer."""
    module, function = c_void_p(), c_void_p()
    call("cuModuleLoadData", byref(module), ctypes.create_string_buffer(64))
    call("cuModuleGetFunction", byref(function), module, b"kernel")
    argument, size = c_uint64(pointer), c_size_t(8)
    extra = (c_void_p * 5)(1, ctypes.addressof(argument), 2, ctypes.addressof(size), 0)
    call("cuLaunchKernel", function, *[c_uint(1)] * 6, c_uint(0), None, None, extra)


def pointer(address: int) -> bytes:
    """A kernel's argument that is a pointer."""
    return struct.pack("<Q", address)


_registered: list[object] = []  # what the card keeps pointers to


def register(fat_binary: bytes, *names: str) -> list[object]:
    """Register kernels as a compiled library does when it is loaded; return what stands for each."""
    image = ctypes.create_string_buffer(fat_binary, len(fat_binary))
    wrapper = ctypes.create_string_buffer(struct.pack("<IIQQ", 0x466243B1, 1, ctypes.addressof(image), 0), 24)
    register_code, register_kernel = card["__cudaRegisterFatBinary"], card["__cudaRegisterFunction"]
    register_code.restype = c_void_p
    module = c_void_p(register_code(wrapper))
    hosts = []
    for name in names:
        host, text = ctypes.create_string_buffer(16), ctypes.create_string_buffer(name.encode())
        register_kernel(module, host, host, text, -1, None, None, None, None, None)
        hosts.append(host)
        _registered.extend([host, text])
    _registered.extend([image, wrapper])
    return hosts


def versions(kernel: object) -> list[int]:
    """The PTX version and the version of the machine code that cudaFuncGetAttributes tells, or the status alone."""
    answer = (c_int * 64)()
    failed = status("cudaFuncGetAttributes", answer, kernel)
    return [failed] if failed else list(answer[8:10])
