"""What Python asks of the card's library, past CUDA: its counts, and the bytes that it holds.

Nothing here prepares the process or counts as a CUDA call. Every function raises ``RuntimeError`` where the card is not
loaded, or its library is of another version than this file.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from oomscope.virtual.loading import library

_VERSION = 8
"""``OOMSCOPE_CARD_VERSION`` of csrc/card.h."""


@dataclass(frozen=True, kw_only=True)
class CardState:
    """Counts of this process since its first CUDA call; all zero before."""

    entered: bool
    """Whether there was a CUDA call."""
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
    """Functions and operations whose workspace only NVIDIA's closed libraries know: it was estimated."""


_NUMBERS = tuple(field.name for field in fields(CardState) if field.name not in {"unsupported", "unknown_workspaces"})


class _Counts(ctypes.Structure):
    """``oomscope_card_counts`` of csrc/card.h: the numbers of a :class:`CardState`, then how many calls are named."""

    _fields_ = [(name, ctypes.c_uint64) for name in (*_NUMBERS, "unsupported")]


def state() -> CardState:
    """Return the present counts."""
    card = _card()
    counts = _Counts()
    card.oomscope_card_counters(ctypes.byref(counts), ctypes.c_size_t(ctypes.sizeof(counts)))
    numbers: dict[str, Any] = {name: getattr(counts, name) for name in _NUMBERS}
    return CardState(
        **numbers | {"entered": bool(counts.entered)},
        unsupported=_names(card.oomscope_card_unsupported),
        unknown_workspaces=_names(card.oomscope_card_unknown_workspaces),
    )


def most_held(device: int) -> int:
    """Return the most bytes that this process and others held at once of a device that it sees."""
    return int(_card().oomscope_card_most_held(device))


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


class Runs(NamedTuple):
    """The bytes of a tensor of the device: loops around runs of bytes, the outermost first."""

    address: int
    run: int
    """Bytes of each run."""
    sizes: tuple[int, ...] = ()
    """Number of rounds of each loop."""
    strides: tuple[int, ...] = ()
    """Bytes by which each loop moves on."""


def holds(runs: Runs) -> bool:
    """Return whether the card holds all bytes of a tensor."""
    return bool(_card().oomscope_card_holds(*_arguments(runs)))


def hold(runs: Runs) -> None:
    """Count a tensor as held, with the bytes that are there."""
    _card().oomscope_card_hold(*_arguments(runs))


def unhold(runs: Runs) -> None:
    """Count a tensor as unknown."""
    _card().oomscope_card_unhold(*_arguments(runs))


def unhold_new(address: int, size: int) -> None:
    """Count a new tensor with memory of its own as unknown, and whole tensors that were held where it is now."""
    _card().oomscope_card_unhold_new(address, size)


def read(to: int, address: int, size: int) -> None:
    """Copy bytes of the device to an address of the host, held or not; what was never written is 0."""
    _card().oomscope_card_read(to, address, size)


def write(address: int, values: int, size: int) -> bool:
    """Copy bytes from an address of the host to allocated memory of the device; what is held stays the same.

    Returns:
        False where the kernel of the system denies a further mapping: nothing is written then.
    """
    return bool(_card().oomscope_card_write(address, values, size))


def _arguments(runs: Runs) -> tuple[Any, ...]:
    count = len(runs.sizes)
    loops = ctypes.c_size_t * count
    return runs.address, runs.run, count, loops(*runs.sizes), loops(*runs.strides)


def keep_held() -> None:
    """Remember from now on what becomes unknown because this thread gives kernels pointers to it. Calls may nest."""
    _card().oomscope_card_keep_held()


def restore_held(written: Sequence[int]) -> None:
    """Hold again what became unknown since the last call of :func:`keep_held`, but for what was written.

    Args:
        written: address and size of each range, one after the other.
    """
    _card().oomscope_card_restore_held((ctypes.c_size_t * len(written))(*written), len(written) // 2)


@contextmanager
def expecting(*values: bytes) -> Iterator[None]:
    """Answer the next reads of this thread in the block, each with the first unused one of ``values`` of its length.

    A read of another length, or of bytes that the card holds, takes none of them. A block in this one ends it.
    """
    card = _card()
    card.oomscope_card_expect(b"".join(values), (ctypes.c_size_t * len(values))(*map(len, values)), len(values))
    _thread.is_expecting = True
    try:
        yield
    finally:
        _thread.is_expecting = False
        card.oomscope_card_expect(b"", None, 0)


def is_expecting() -> bool:
    """Return whether this thread is in a block of :func:`expecting`."""
    return _thread.is_expecting


class _Thread(threading.local):
    is_expecting = False


_thread = _Thread()


def _card() -> ctypes.CDLL:
    return _typed(library())


@functools.cache
def _typed(card: ctypes.CDLL) -> ctypes.CDLL:
    if (version := int(card.oomscope_card_version())) != _VERSION:
        raise RuntimeError(f"the virtual card's library has version {version}, not {_VERSION}: rebuild it")
    card.oomscope_card_counters.restype = ctypes.c_size_t
    card.oomscope_card_unsupported.restype = ctypes.c_size_t
    card.oomscope_card_unknown_workspaces.restype = ctypes.c_size_t
    card.oomscope_card_most_held.restype = ctypes.c_uint64
    loops = ctypes.POINTER(ctypes.c_size_t)
    for function in (card.oomscope_card_holds, card.oomscope_card_hold, card.oomscope_card_unhold):
        function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, loops, loops]
    card.oomscope_card_hold.restype = card.oomscope_card_unhold.restype = None
    for function in (card.oomscope_card_read, card.oomscope_card_write):
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    card.oomscope_card_read.restype = None
    card.oomscope_card_unhold_new.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
    card.oomscope_card_unhold_new.restype = None
    card.oomscope_card_keep_held.restype = None
    card.oomscope_card_restore_held.argtypes = [loops, ctypes.c_size_t]
    card.oomscope_card_restore_held.restype = None
    card.oomscope_card_expect.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_size_t), ctypes.c_size_t]
    card.oomscope_card_expect.restype = None
    return card
