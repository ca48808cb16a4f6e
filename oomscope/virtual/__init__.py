"""The virtual card: stand-ins for NVIDIA's libraries, on which PyTorch's own CUDA build runs without a GPU.

Importing this package is cheap: no torch, and no library is loaded before :func:`load`.
"""

from __future__ import annotations

from oomscope.virtual.library import (
    CardState,
    Origin,
    expecting,
    forget_last_held,
    hold,
    is_held,
    kept,
    on_unknown_read,
    read_held,
    read_last_held,
    state,
    unhold,
    write_held,
)
from oomscope.virtual.loading import is_loaded, load
from oomscope.virtual.settings import CardSettings

__all__ = [
    "CardSettings",
    "CardState",
    "Origin",
    "expecting",
    "forget_last_held",
    "hold",
    "is_held",
    "is_loaded",
    "kept",
    "load",
    "on_unknown_read",
    "read_held",
    "read_last_held",
    "state",
    "unhold",
    "write_held",
]
