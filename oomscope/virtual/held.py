"""Reads and writes device memory of the virtual card from the host, past CUDA: no call is counted."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

from oomscope.virtual.loading import library


class Origin(IntEnum):
    """Where the bytes come from that the card holds."""

    NOT_HELD = 0
    COPIED = 1
    """From the host, by the program."""
    COMPUTED = 2
    """By the host, in place of a kernel."""


def read_held(to: int, address: int, size: int) -> Origin:
    """Copy the bytes of a tensor's storage to the host if the card holds them all; what touches it is another's.

    Args:
        to: an address of the host with room for ``size`` bytes.
        address: of the device.
        size: bytes.

    Returns:
        Where they come from; nothing is copied where the card does not hold them all.

    Raises:
        RuntimeError: the card is not loaded.
    """
    return Origin(_card().oomscope_card_read_held(to, address, size))


def write_held(address: int, values: int, size: int, origin: Origin) -> None:
    """Write bytes to allocated device memory; the card then holds them.

    Args:
        address: of the device.
        values: an address of the host.
        size: bytes.
        origin: what was copied is remembered when a kernel was given it; what was computed is not.

    Raises:
        RuntimeError: the card is not loaded.
    """
    _card().oomscope_card_write_held(address, values, size, origin is Origin.COMPUTED)


@contextmanager
def expecting(value: bytes) -> Iterator[None]:
    """Let the next read of as many bytes be ``value``, where the card holds none of them; of this thread, in the block.

    Raises:
        RuntimeError: the card is not loaded.
    """
    card = _card()
    card.oomscope_card_expect(value, len(value))
    try:
        yield
    finally:
        card.oomscope_card_expect(b"", 0)


@functools.cache
def _card() -> ctypes.CDLL:
    card = library()
    card.oomscope_card_read_held.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    card.oomscope_card_write_held.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    card.oomscope_card_write_held.restype = None
    card.oomscope_card_expect.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    card.oomscope_card_expect.restype = None
    return card
