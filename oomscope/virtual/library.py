"""What Python asks of the card's library, past CUDA: its counts, and the bytes that it holds.

Nothing here prepares the process or counts as a CUDA call. Every function raises ``RuntimeError`` where the card is not
loaded, or its library is of another version than this file.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any

from oomscope.virtual.loading import library

_VERSION = 5
"""``OOMSCOPE_CARD_VERSION`` of csrc/card.h."""


@dataclass(frozen=True, kw_only=True)
class CardState:
    """Counts of this process since its first CUDA call; all zero before."""

    entered: bool
    """There was a CUDA call."""
    used_bytes: int
    """Device memory that this process holds, over all devices."""
    launches: int
    """Kernels, library calls and graphs."""
    unknown_reads: int
    """Copies to the host of bytes that the card does not hold."""
    unknown_read_bytes: int
    unsupported: tuple[str, ...]
    """Functions that answered "not supported", in the order of their first calls."""
    unknown_workspaces: tuple[str, ...]
    """Functions and operations whose workspace only NVIDIA's closed libraries know: they were given an estimate."""


_NUMBERS = tuple(field.name for field in fields(CardState) if field.name not in {"unsupported", "unknown_workspaces"})


class _Counts(ctypes.Structure):
    """``oomscope_card_counts`` of csrc/card.h: the numbers of a :class:`CardState`, then how many calls are named."""

    _fields_ = [(name, ctypes.c_uint64) for name in (*_NUMBERS, "unsupported")]


def state() -> CardState:
    """Return the counts as they stand."""
    card = _card()
    counts = _Counts()
    card.oomscope_card_counters(ctypes.byref(counts), ctypes.c_size_t(ctypes.sizeof(counts)))
    numbers: dict[str, Any] = {name: getattr(counts, name) for name in _NUMBERS}
    return CardState(
        **numbers | {"entered": bool(counts.entered)},
        unsupported=_names(card.oomscope_card_unsupported),
        unknown_workspaces=_names(card.oomscope_card_unknown_workspaces),
    )


def on_unknown_read(callback: Callable[[int], None] | None) -> None:
    """Have ``callback`` called with the number of bytes just before a read of unknown bytes is answered.

    It runs on the reading thread; what it raises is printed and lost, as in every callback from C. None removes it.
    """
    global _kept  # noqa: PLW0603 - C holds the pointer, Python must hold the object
    card = _card()
    called = _Callback(callback) if callback is not None else _Callback()
    card.oomscope_card_on_unknown_read(called)
    _kept = called


_Callback = ctypes.CFUNCTYPE(None, ctypes.c_uint64)
_kept: object = None


def _names(write: Callable[[ctypes.Array[ctypes.c_char] | None, ctypes.c_size_t], int]) -> tuple[str, ...]:
    length = int(write(None, ctypes.c_size_t(0)))
    text = ctypes.create_string_buffer(length + 1)
    write(text, ctypes.c_size_t(length + 1))
    return tuple(text.value.decode().split("\n")) if length else ()


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
    """
    return Origin(_card().oomscope_card_read_held(to, address, size))


def read_last_held(to: int, address: int, size: int) -> Origin:
    """Do the same with the bytes as the card held them until a kernel was given them.

    Whether a kernel changed them is not known here. Nothing is copied where something wrote over them that the card
    knows of.
    """
    return Origin(_card().oomscope_card_read_last_held(to, address, size))


def is_held(address: int, size: int) -> bool:
    """Return whether the card holds all bytes of a range of the device."""
    return bool(_card().oomscope_card_is_held(address, size))


def forget_last_held(address: int, size: int) -> None:
    """Mark a device range as written: discard the values that it held before the kernel."""
    _card().oomscope_card_forget_last_held(address, size)


def write_held(address: int, values: int, size: int, origin: Origin) -> None:
    """Write bytes to allocated device memory; the card then holds them.

    Args:
        address: of the device.
        values: an address of the host.
        size: bytes.
        origin: whence they are.
    """
    _card().oomscope_card_write_held(address, values, size, origin is Origin.COMPUTED)


def hold(address: int, size: int) -> None:
    """Count a device range as held, with the bytes that are there."""
    _card().oomscope_card_hold(address, size)


def unhold(address: int, size: int) -> None:
    """Count a device range as unknown."""
    _card().oomscope_card_unhold(address, size)


@contextmanager
def kept() -> Iterator[None]:
    """Hold after the block what became unknown in it because this thread gave pointers to kernels."""
    card = _card()
    card.oomscope_card_keep_held(1)
    try:
        yield
    finally:
        card.oomscope_card_keep_held(0)


@contextmanager
def expecting(*values: bytes) -> Iterator[None]:
    """Answer the next reads of this thread in the block, each with the first of ``values`` that is as long and is left.

    A read of another length, or of bytes that the card holds, takes none of them.
    """
    card = _card()
    card.oomscope_card_expect(b"".join(values), (ctypes.c_size_t * len(values))(*map(len, values)), len(values))
    try:
        yield
    finally:
        card.oomscope_card_expect(b"", None, 0)


def _card() -> ctypes.CDLL:
    return _typed(library())


@functools.cache
def _typed(card: ctypes.CDLL) -> ctypes.CDLL:
    if (version := int(card.oomscope_card_version())) != _VERSION:
        raise RuntimeError(f"the virtual card's library has version {version}, not {_VERSION}: build it anew")
    card.oomscope_card_counters.restype = ctypes.c_size_t
    card.oomscope_card_unsupported.restype = ctypes.c_size_t
    card.oomscope_card_unknown_workspaces.restype = ctypes.c_size_t
    card.oomscope_card_read_held.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    card.oomscope_card_read_last_held.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    card.oomscope_card_is_held.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    card.oomscope_card_forget_last_held.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    card.oomscope_card_forget_last_held.restype = None
    card.oomscope_card_write_held.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    card.oomscope_card_write_held.restype = None
    for function in (card.oomscope_card_hold, card.oomscope_card_unhold):
        function.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        function.restype = None
    card.oomscope_card_keep_held.argtypes = [ctypes.c_int]
    card.oomscope_card_keep_held.restype = None
    card.oomscope_card_expect.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_size_t), ctypes.c_size_t]
    card.oomscope_card_expect.restype = None
    return card
