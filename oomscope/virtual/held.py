"""Reads and writes device memory of the virtual card from the host, past CUDA: no call is counted."""

from __future__ import annotations

import ctypes
import functools

from oomscope.virtual.loading import library


def read_held(to: int, address: int, size: int) -> bool:
    """Copy bytes of allocated device memory to the host if the card holds them all.

    Args:
        to: an address of the host with room for ``size`` bytes.
        address: of the device.
        size: bytes.

    Returns:
        Whether it holds them; else nothing is copied.

    Raises:
        RuntimeError: the card is not loaded.
    """
    return bool(_card().oomscope_card_read_held(to, address, size))


def write_held(address: int, values: int, size: int) -> None:
    """Write bytes to allocated device memory, as a kernel that computes them would; the card then holds them.

    Args:
        address: of the device.
        values: an address of the host.
        size: bytes.

    Raises:
        RuntimeError: the card is not loaded.
    """
    _card().oomscope_card_write_held(address, values, size)


@functools.cache
def _card() -> ctypes.CDLL:
    card = library()
    for function in (card.oomscope_card_read_held, card.oomscope_card_write_held):
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    card.oomscope_card_write_held.restype = None
    return card
