"""The virtual card: stand-ins for NVIDIA's libraries, on which PyTorch's own CUDA build runs without a GPU.

Importing this package is cheap: no torch, and no library is loaded before :func:`load`.
"""

from __future__ import annotations

from oomscope.virtual.library import (
    CardState,
    Origin,
    expecting,
    forget_last_held,
    is_held,
    on_unknown_read,
    read_held,
    read_last_held,
    state,
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
    "is_held",
    "is_loaded",
    "load",
    "on_unknown_read",
    "read_held",
    "read_last_held",
    "state",
    "write_held",
]
