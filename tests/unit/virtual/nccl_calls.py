"""NCCL's calls for scripts of tests, beside those of CUDA (``cuda_calls``)."""

from __future__ import annotations

import ctypes
import struct
from ctypes import byref, c_char, c_int, c_void_p

from tests.unit.virtual.cuda_calls import call, malloc, to_device, to_host, unknown

INT32, INT64, HALF, FLOAT, DOUBLE, BF16, FP8 = 2, 4, 6, 7, 8, 9, 10
SUM, PRODUCT, MAX, MIN, AVG, OWN = range(6)


class Id(ctypes.Structure):
    _fields_ = [("bytes", c_char * 128)]


def joined(ranks: int, rank: int, identity: bytes = b"") -> c_void_p:
    communicator = c_void_p()
    call("ncclCommInitRank", byref(communicator), c_int(ranks), Id(identity), c_int(rank))
    return communicator


def tensor(form: str, *values: object) -> c_void_p:
    data = struct.pack(form, *values)
    pointer = malloc(max(len(data), 1))
    to_device(pointer, data)
    return c_void_p(pointer)


def read(pointer: c_void_p, form: str) -> list[object] | str:
    size = struct.calcsize(form)
    missing = unknown(pointer.value, size)
    return list(struct.unpack(form, to_host(pointer.value, size))) if not missing else f"{missing} bytes unknown"
