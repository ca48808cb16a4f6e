"""Keeps Python's collector of cycles out of imports.

Importing torch makes a third of a million objects, nearly all of which stay. The collector would look through them
again and again, which takes as long as a fifth of the imports.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Look for no garbage inside the block; afterwards the collector is on where it was on before."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
