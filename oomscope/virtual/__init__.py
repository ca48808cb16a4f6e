"""The virtual card: stand-ins for NVIDIA's libraries, on which PyTorch's own CUDA build runs without a GPU.

Importing this package is cheap: no torch, and no library is loaded before :func:`load`.
"""

from __future__ import annotations

from oomscope.virtual.library import (
    CardState,
    Runs,
    expecting,
    hold,
    holds,
    is_expecting,
    keep_held,
    most_held,
    on_unknown_read,
    read,
    restore_held,
    state,
    unhold,
    unhold_new,
    write,
)
from oomscope.virtual.loading import is_loaded, load
from oomscope.virtual.settings import CardSettings

__all__ = [
    "CardSettings",
    "CardState",
    "Runs",
    "expecting",
    "hold",
    "holds",
    "is_expecting",
    "is_loaded",
    "keep_held",
    "load",
    "most_held",
    "on_unknown_read",
    "read",
    "restore_held",
    "state",
    "unhold",
    "unhold_new",
    "write",
]
