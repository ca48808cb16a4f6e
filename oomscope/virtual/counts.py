"""What the card counted in this process, read from its library; reading prepares nothing and counts as no CUDA call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

from oomscope.virtual.loading import library

_VERSION = 2
"""``OOMSCOPE_CARD_VERSION`` of csrc/card.h, whose struct ``oomscope_card_counts`` has these fields in this order."""


_NAMES = (
    "entered",
    "used_bytes",
    "peak_used_bytes",
    "pinned_bytes",
    "peak_pinned_bytes",
    "registered_bytes",
    "peak_registered_bytes",
    "managed_bytes",
    "launches",
    "h2d_bytes",
    "d2h_bytes",
    "d2d_bytes",
    "unknown_reads",
    "unknown_read_bytes",
    "refused_allocations",
    "unsupported",
)


class _Counts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in _NAMES]


@dataclass(frozen=True, kw_only=True)
class CardState:
    """Counts of this process since its first CUDA call; all zero before."""

    entered: bool
    """There was a CUDA call."""
    used_bytes: int
    """Device memory that this process holds, over all devices."""
    peak_used_bytes: int
    pinned_bytes: int
    """Page-locked host memory from cudaHostAlloc."""
    peak_pinned_bytes: int
    registered_bytes: int
    """Host memory that cudaHostRegister page-locked."""
    peak_registered_bytes: int
    managed_bytes: int
    """Memory from cudaMallocManaged, which ``used_bytes`` does not count."""
    launches: int
    """Kernels, library calls and graphs."""
    h2d_bytes: int
    d2h_bytes: int
    d2d_bytes: int
    unknown_reads: int
    """Copies to the host of bytes that the card does not hold."""
    unknown_read_bytes: int
    refused_allocations: int
    """Requests for device memory beyond the budget."""
    unsupported: tuple[str, ...]
    """Functions that answered "not supported", in the order of their first calls."""
    unknown_workspaces: tuple[str, ...]
    """Functions and operations whose workspace only NVIDIA's closed libraries know: they were given an estimate."""


def state() -> CardState:
    """Return the counts as they stand.

    Raises:
        RuntimeError: the card is not loaded, or its library is of another version than this file.
    """
    card = _checked_library()
    counts = _Counts()
    card.oomscope_card_counters(ctypes.byref(counts), ctypes.c_size_t(ctypes.sizeof(counts)))
    values = {name: int(getattr(counts, name)) for name in _NAMES}
    names = {
        "entered": bool(values.pop("entered")),
        "unsupported": _names(card.oomscope_card_unsupported),
        "unknown_workspaces": _names(card.oomscope_card_unknown_workspaces),
    }
    return CardState(**(values | names))  # type: ignore[arg-type]


def on_unknown_read(callback: Callable[[int], None] | None) -> None:
    """Have ``callback`` called with the number of bytes just before a read of unknown bytes is answered.

    It runs on the reading thread; what it raises is printed and lost, as in every callback from C. None removes it.

    Raises:
        RuntimeError: the card is not loaded, or its library is of another version than this file.
    """
    global _kept  # noqa: PLW0603 - C holds the pointer, Python must hold the object
    card = _checked_library()
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


def _checked_library() -> ctypes.CDLL:
    card = library()
    if (version := int(card.oomscope_card_version())) != _VERSION:
        raise RuntimeError(f"the virtual card's library has version {version}, not {_VERSION}: build it anew")
    card.oomscope_card_counters.restype = ctypes.c_size_t
    card.oomscope_card_unsupported.restype = ctypes.c_size_t
    card.oomscope_card_unknown_workspaces.restype = ctypes.c_size_t
    return card
