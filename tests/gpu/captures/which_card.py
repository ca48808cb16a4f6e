"""Loads the virtual card where there is no GPU; to be imported before torch. A machine with a GPU needs no oomscope."""

from __future__ import annotations

import contextlib

is_virtual = False
with contextlib.suppress(ImportError):
    import tests.card  # noqa: F401 - loads it
    from oomscope import virtual

    is_virtual = virtual.is_loaded()
CARD = "virtual" if is_virtual else "cuda"
"""What captures say they were made on."""
